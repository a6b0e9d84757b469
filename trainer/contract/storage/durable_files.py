"""Files that survive a loss of power: they are on the disk before anything relies on them."""

import os
from pathlib import Path


def replace(path: Path, text: str, label: str) -> None:
    """Writes a file in one piece, by a file beside it whose name ends with `label`."""
    temporary = path.with_name(f".{path.name}.{label}")
    temporary.write_text(text, encoding="utf-8")
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Waits until a file's content, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path) -> None:
    """The same for everything in a folder, and the folder itself."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)
