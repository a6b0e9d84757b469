"""Logs of Ray's own processes, kept with the run when its gang could not be formed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.core.errors import HostError

LONGEST_BYTES = 200_000
"""Bytes kept from the end of each file."""
PATTERNS = ("*.log", "*/session_latest/logs/*.log", "*/session_latest/logs/*.out",
            "*/session_latest/logs/*.err")  # fmt: skip


@contextmanager
def keeping(folder: Path | None, run_dir: Path) -> Iterator[None]:
    """Copies the logs, which are deleted with the hosts, on a HostError, and adds the path to it.

    `folder`: see `HostCluster`.
    """
    try:
        yield
    except HostError as error:
        target = run_dir / "logs" / "ray"
        if not keep(folder, target):
            raise
        raise HostError(f"{error}. Ray's own logs: {target}") from error


def keep(folder: Path | None, target: Path) -> bool:
    """Copies the ends of all logs below a cluster's folder to `target`.

    The files of one node go to a folder of its name. Returns False when there are no logs.
    """
    kept = False
    for path in (path for pattern in PATTERNS for path in (folder.glob(pattern) if folder else ())):
        text = _end(path)
        if not text or folder is None:
            continue
        inner = path.relative_to(folder)
        node = inner.parts[0] if len(inner.parts) > 1 else "."
        (target / node).mkdir(parents=True, exist_ok=True)
        (target / node / path.name).write_bytes(text)
        kept = True
    return kept


def _end(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LONGEST_BYTES))
            return file.read()
    except OSError:
        return b""  # Ray deletes and renames logs at any time
