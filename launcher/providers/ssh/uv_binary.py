"""This machine's uv, which is sent to the hosts: nothing needs to be installed on them."""

import hashlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from launcher.core.errors import HostError

ELF = b"\x7fELF"
ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Uv:
    """The uv program file, and the kind of machine that it runs on."""

    path: Path

    @property
    def machine(self) -> str:
        """Operating system and architecture, as printed by `uname -sm`."""
        return f"{platform.system()} {platform.machine()}"

    @cached_property
    def sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def find_uv() -> Uv:
    """Returns the uv that runs `launch`, else the one on the search path.

    Raises HostError when there is none.
    """
    for given in (os.environ.get("UV"), shutil.which("uv")):
        if given and (path := _program(given)):
            return Uv(path)
    raise HostError("uv: not found. It creates the environments of the hosts; run `pip install uv`")


def _program(given: str) -> Path | None:
    """Returns the program itself, even when a version manager has put a script in its place.

    Returns None when it cannot be found.
    """
    path = Path(given).resolve()
    if _is_program(path):
        return path
    command = [given, "run", "--no-project", "printenv", "UV"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = Path(done.stdout.strip())
    return found if found.is_absolute() and _is_program(found) else None


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(ELF)) == ELF or platform.system() != "Linux"
    except OSError:
        return False
