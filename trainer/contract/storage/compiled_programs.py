"""Where a host keeps compiled programs, and which of the files the hosts of a run share."""

import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

EXECUTABLES = "executables"
"""Folder of the programs that a process loads without a trace, in the cache folder."""
COMPILED = "compiled"
"""Folder of JAX's compile cache, in the cache folder."""
SHARED = re.compile(rf"{EXECUTABLES}/[0-9a-f]+/[\w<][^/\0]*|{COMPILED}/\w[^/\0]*-cache")
"""Paths below the cache folder of the files that hosts share."""
IN_RUN = ".shared-programs"
"""Folder of a run's folder with the files of hosts that have caches of their own."""
DEFAULT_BYTES = 8 * 2**30
ID_FILE = "folder-id"
ID_BYTES = 16


def user_cache_folder(variables: Mapping[str, str]) -> Path:
    """Returns `$XDG_CACHE_HOME/slipway`, by default `~/.cache/slipway`.

    Raises RuntimeError for a user without a home.
    """
    base = variables.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "slipway"


def limit_of(text: str | None) -> int | None:
    """Returns the limit that SLIPWAY_PROGRAMS_BYTES sets; None unless it is a number of bytes."""
    text = text or str(DEFAULT_BYTES)
    return int(text) if text.isascii() and text.isdecimal() else None


def folder_id(folder: Path) -> str:
    """Returns the random id of a cache folder, created if missing; "" when that is not possible.

    Hosts that see one folder read one id.
    """
    path = folder / ID_FILE
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _create_whole(path, secrets.token_hex(ID_BYTES))
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _create_whole(path: Path, text: str) -> None:
    """Creates a file that is never seen without its content, unless another host does so first."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(ID_BYTES)}")
    try:
        temporary.write_text(text, encoding="utf-8")
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, content: bytes | bytearray) -> None:
    """Writes a file that has its name only once it is complete. Raises OSError.

    A loss of power may damage it: its readers detect that.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
