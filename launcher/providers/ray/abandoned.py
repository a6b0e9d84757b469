"""Cleans up after a launch whose reaper and guard were both killed.

The folder of that launch holds a file that no process locks any more, see
`launcher/host/reaper.py`. Its Ray processes are found by the path of their token.
"""

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from launcher.host.reaper import OWNER_FILE

ENDING_TIMEOUT_S, POLL_INTERVAL_S = 10.0, 0.01


def remove_abandoned(base: Path, prefix: str) -> None:
    """Cleans up every abandoned launch of this user below `base`.

    Its processes are ended and its folder is removed.
    """
    for folder in base.glob(f"{prefix}*"):
        with suppress(OSError, ValueError):  # in use, another user's, or just removed
            if _is_private(folder):
                _remove(folder)


def _is_private(folder: Path) -> bool:
    """Returns whether only this user can write to the folder: commands stored in it are run."""
    about = folder.lstat()
    is_own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return is_own and not about.st_mode & 0o077


def _remove(folder: Path) -> None:
    """Cleans up one launch. Raises OSError when its owner is alive or the owner file is missing."""
    with (folder / OWNER_FILE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        cleanup = json.load(file)
        _end_processes(f"RAY_AUTH_TOKEN_PATH={folder}/token")
        for command in cleanup:
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def _end_processes(variable: str) -> None:
    """Kills every process that was started with this variable, until none is left."""
    deadline = time.monotonic() + ENDING_TIMEOUT_S
    while time.monotonic() < deadline:
        found = [process for process in Path("/proc").glob("[0-9]*") if _has(process, variable)]
        if not found:
            return
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        time.sleep(POLL_INTERVAL_S)


def _has(process: Path, variable: str) -> bool:
    """Returns whether a process has the variable. Returns False when the process has ended."""
    try:
        return os.fsencode(variable) in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
