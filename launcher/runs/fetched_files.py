"""The files of a run's folder that this machine copies from the machine that runs the run.

The other machine may be compromised, so only files that are displayed are copied. Files that a
later command acts on (job.yaml, remote.json, run_id, ...) stay as this machine wrote them.
"""

import re
import sys
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from launcher.core.errors import HostError

if sys.version_info >= (3, 11, 4):
    import tarfile
else:  # Python's own has no filters.
    from backports import tarfile

KNOWN = re.compile(
    r"(events|metrics|samples)\.jsonl(\.\d+)?|events_summary\.json|hosts\.json|sample\.txt|state\.json|plans/\d{4,6}\.json"
    r"|(logs|tensorboard|profile|wandb/(offline-)?run-[^/]+)/.+",
    re.DOTALL,
)
"""Paths of these files, below the run's folder."""
LARGEST_BYTES, MOST_ENTRIES = 64 << 30, 200_000


class UnpackError(HostError):
    """An archive cannot be unpacked; the message gives the reason."""


def unpack(packed: IO[bytes], folder: Path) -> None:
    """Writes the known files of an archive, a .tar.gz, into a folder and nowhere else.

    Raises UnpackError.
    """
    entries = size = 0

    def known(entry: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        nonlocal entries, size
        entries, size = entries + 1, size + entry.size
        if entries > MOST_ENTRIES or size > LARGEST_BYTES:
            raise UnpackError(
                f"it has more than {MOST_ENTRIES:,} entries or {LARGEST_BYTES >> 30} GiB"
            )
        return tarfile.data_filter(entry, path) if is_known(entry) else None

    try:
        with tarfile.open(fileobj=packed, mode="r|gz") as archive:
            archive.extractall(folder, filter=known)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise UnpackError(str(error) or type(error).__name__) from None


def is_known(entry: tarfile.TarInfo) -> bool:
    """Returns whether an entry is a regular file with a known path."""
    path = PurePosixPath(entry.name)
    return entry.isreg() and ".." not in path.parts and bool(KNOWN.fullmatch(str(path)))
