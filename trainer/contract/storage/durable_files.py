"""Files that survive a loss of power: they are on disk before anything relies on them."""

import os
from contextlib import suppress
from pathlib import Path


def replace(path: Path, content: str | bytes, label: str) -> None:
    """Replaces a file atomically, through a temporary file beside it with the suffix `label`."""
    temporary = path.with_name(f".{path.name}.{label}")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def add(path: Path, content: bytes | bytearray, label: str) -> None:
    """Writes a new file atomically, through a temporary file like `replace`; keeps an old one."""
    temporary = path.with_name(f".{path.name}.{label}")
    try:
        temporary.write_bytes(content)
        sync(temporary)
        with suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """Waits until a folder and everything in it are on disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)
