"""The archive for a bug report: small texts about a run, without secrets."""

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from launcher.core.errors import UsageError

NAME = "debug.zip"
MARK = b"Slipway debug archive"
"""The comment of every archive; no other file is replaced."""
WHOLE = ("job.yaml", "state.json", "hosts.json", "events_summary.json", "plans/*.json")
TAILS = ("events.jsonl", "metrics.jsonl", "logs/*.log")
TAIL_BYTES = {"events.jsonl": 4 << 20, "metrics.jsonl": 1 << 20}
LOG_BYTES, MOST_LOGS = 256 << 10, 200
MOST_PLANS = 50


def check_target(path: Path) -> None:
    """Raises UsageError when an archive cannot be written, or would replace another file."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}. Create it, or use --to FILE")
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file in it: --to {path / NAME}")
    if path.exists() and not _is_archive(path):
        raise UsageError(
            f"{path} exists and is no archive of `launch debug`. Name another file: --to FILE"
        )


def texts_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the names and texts of files in a run's folder; of large ones, the last lines."""
    for pattern in WHOLE:
        for path in sorted(folder.glob(pattern))[-MOST_PLANS:]:
            yield str(path.relative_to(folder)), _tail(path, TAIL_BYTES["events.jsonl"])
    for pattern in TAILS:
        for path in sorted(folder.glob(pattern))[:MOST_LOGS]:
            name = str(path.relative_to(folder))
            yield name, _tail(path, TAIL_BYTES.get(name, LOG_BYTES))


def write_archive(path: Path, root: str, texts: dict[str, str]) -> None:
    """Writes texts into an archive that only this user can read, in place of a previous one.

    Raises UsageError when the file cannot be written.
    """
    making = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            archive.comment = MARK
            for name, text in texts.items():
                archive.writestr(f"{root}/{name}", text)
        making.replace(path)
    except OSError as error:
        making.unlink(missing_ok=True)
        raise UsageError(
            f"{path} cannot be written: {error.strerror}. Name another file: --to FILE"
        ) from None


def _is_archive(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.comment == MARK
    except (OSError, zipfile.BadZipFile):
        return False


def _tail(path: Path, most_bytes: int) -> str:
    """Returns the last whole lines of a file; half a line could be half a secret."""
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - most_bytes)
            file.seek(begin)
            if begin:
                file.readline()
            return file.read(most_bytes).decode(errors="replace")
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}\n"
