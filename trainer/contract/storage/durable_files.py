"""Files that survive a loss of power: they are on disk before anything relies on them."""

import os
from pathlib import Path


def replace(path: Path, content: str | bytes, label: str) -> None:
    """Replaces a file atomically, through a temporary file beside it with the suffix `label`."""
    temporary = path.with_name(f".{path.name}.{label}")
    temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


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
