"""Archives of run folders, as a head sends them."""

import io
import tarfile
from typing import Any


def entry(name: str, content: str = "bad", **about: Any) -> tuple[tarfile.TarInfo, bytes]:
    made = tarfile.TarInfo(name)
    made.size = len(content)
    for key, value in about.items():
        setattr(made, key, value)
    return made, content.encode()


def packed(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for about, content in entries:
            tar.addfile(about, io.BytesIO(content))
    return archive.getvalue()
