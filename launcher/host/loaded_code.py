"""Whether a process that has waited for its work still runs the code that is installed."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The folder that Slipway's packages are in."""


class LoadedCode:
    """The files below the root of modules that this process had imported when this was created."""

    def __init__(self) -> None:
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        paths = [Path(file) for file in files if file]
        self._files = {path: _identity(path) for path in paths if path.is_relative_to(ROOT)}

    def is_current(self) -> bool:
        """Returns whether none of them has been changed, replaced or removed."""
        return all(_identity(path) == before for path, before in self._files.items())


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Returns what a write or a replacement of the file changes; None when there is no file."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino
