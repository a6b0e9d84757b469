"""Lists files by a glob. Python's glob takes a folder that storage cannot list for an empty one."""

import fnmatch
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

ANY_DEPTH = "**"


def matching(pattern: Path) -> Iterator[Path]:
    """Yields the matches of an absolute or relative pattern, as glob.glob(recursive=True) does.

    Like glob, it skips folders that the user may not read. Raises OSError for all other errors.
    """
    yield from _below(Path(pattern.anchor), pattern.relative_to(pattern.anchor).parts)


def _below(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    if not parts:
        yield folder
        return
    first, rest = parts[0], parts[1:]
    if first == ANY_DEPTH:
        yield from _below(folder, rest or ["*"])
        for name, is_folder in _entries(folder):
            if is_folder and not name.startswith("."):
                yield from _below(folder / name, parts)
    elif glob.has_magic(first):
        for name, is_folder in _entries(folder):
            if (is_folder or not rest) and _matches(name, first):
                yield from _below(folder / name, rest)
    elif rest or _exists(folder / first):
        yield from _below(folder / first, rest)


def _matches(name: str, pattern: str) -> bool:
    is_hidden = name.startswith(".") and not pattern.startswith(".")
    return not is_hidden and fnmatch.fnmatchcase(name, pattern)


def _entries(folder: Path) -> list[tuple[str, bool]]:
    """Returns the name of each entry, and whether it is a folder."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir()) for entry in entries]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    return True
