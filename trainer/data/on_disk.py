"""Files that can only be read where they are mapped into memory: of an object store, a copy."""

import hashlib
import os
import shutil
from pathlib import Path

from trainer.folders import cache_folder, make_cache_folder
from trainer.spec.corpus import File, reading


def on_disk(file: File) -> Path:
    """The file on this host, fetched once where it is on an object store. Raises DataError."""
    if file.mark is None:
        return file.path
    key = hashlib.sha256(f"{file.path}\0{file.mark}".encode()).hexdigest()[:32]
    copy = cache_folder() / "objects" / f"{key}{file.path.suffix}"
    if not copy.exists():
        make_cache_folder(copy.parent.name)
        unfinished = copy.with_name(f".{copy.name}.{os.getpid()}")
        with reading(file) as source, unfinished.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 24)
        unfinished.rename(copy)
    return copy
