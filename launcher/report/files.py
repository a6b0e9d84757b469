"""The files of reports: where they are, and what they may replace."""

from pathlib import Path

from launcher.core.errors import UsageError
from launcher.core.files import replace_file

NAME, INDEX_NAME = "report.html", "index.html"
MARK = b'<meta name="generator" content="Slipway report">'
"""What every report has near its begin; no other file is replaced."""
MARK_WITHIN_BYTES = 512


def check_target(path: Path, option: str = "--to") -> None:
    """Raises UsageError when a report cannot be written to `path` or would replace another file.

    `option` is the one that names the file.
    """
    if not path.parent.is_dir():
        raise UsageError(
            f"{path}: there is no folder {path.parent}. Create it, or use {option} FILE"
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder. Name a file in it: {option} {path / NAME}")
    if path.exists() and not is_report(path):
        raise UsageError(
            f"{path} exists and is no report of Slipway's. Name another file: {option} FILE"
        )


def is_report(path: Path) -> bool:
    """Returns whether a file is a report that an earlier command wrote."""
    try:
        with path.open("rb") as file:
            return MARK in file.read(MARK_WITHIN_BYTES)
    except OSError:
        return False


def write_report(path: Path, html: str, option: str = "--to") -> None:
    """Replaces a report atomically. Raises UsageError when the file cannot be written."""
    try:
        replace_file(path, html)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}. Name another file: {option} FILE"
        ) from None
