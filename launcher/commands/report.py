"""`launch report`: writes the page of runs, or the index of all runs."""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher import api
from launcher.commands.run_folders import run_folders
from launcher.core.errors import InterruptError, SlipwayError
from launcher.core.json_output import print_json_line
from launcher.report.files import INDEX_NAME, NAME, check_target, is_report, write_report
from launcher.report.index import index_row
from launcher.report.page import REFRESH_S, index, report
from launcher.runs.run_record import read_record
from launcher.runs.status import RunStatus

PAUSES = 10
"""A pause between two writes takes at least this many times as long as a write."""


@dataclass(frozen=True)
class ReportOptions:
    """The options of `launch report`."""

    runs: Path
    to: Path | None
    follow: bool
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class ReportResult:
    """A report that was written."""

    report: str
    """The HTML file."""
    bytes: int
    """Size of the file."""
    runs: Sequence[str]
    """Names of the runs in it."""
    live: bool
    """Whether one of them was still running; with `--follow`, the file is then updated."""


def report_runs(names: Sequence[str], options: ReportOptions) -> None:
    """Writes one report of these runs.

    Raises UsageError for unknown runs and for a file that must not be replaced, before it writes
    anything, and InterruptError after Ctrl-C.
    """
    folders = run_folders(names, options.runs)
    target = options.to or (folders[0] if len(folders) == 1 else options.runs) / NAME
    check_target(target)

    def write() -> bool:
        records = [read_record(folder) for folder in folders]
        write_report(target, report(records, time.time()))
        return any(record.status.is_alive for record in records)

    _write(write, target, [folder.name for folder in folders], options)


def report_all(options: ReportOptions) -> None:
    """Writes the index of all runs, and the report of each run in `runs` that has changed.

    Raises UsageError and InterruptError like `report_runs`.
    """
    target = options.to or options.runs / INDEX_NAME
    check_target(target)

    def write() -> bool:
        found = api.list_runs(options.runs)
        rows = [index_row(status, _page_of(status, options.runs), target) for status in found]
        write_report(target, index(rows, time.time()))
        return any(status.is_alive for status in found)

    _write(write, target, [status.name for status in api.list_runs(options.runs)], options)


def _page_of(status: RunStatus, runs: Path) -> Path | None:
    """Returns the report of a run; None without one.

    Writes that of a run in `runs` if it is missing or older than the run.
    """
    path = status.folder / NAME
    is_in_runs = status.folder.parent.resolve() == runs.resolve()
    if is_in_runs and (not path.exists() or (is_report(path) and _is_older(path, status))):
        with suppress(SlipwayError):  # an unreadable run hides no other one
            write_report(path, report([read_record(status.folder)], time.time()))
    return path if is_report(path) else None


def _is_older(path: Path, status: RunStatus) -> bool:
    return status.is_alive or path.stat().st_mtime < status.changed_at


def _write(
    write: Callable[[], bool], target: Path, names: list[str], options: ReportOptions
) -> None:
    """Writes a report and prints its path; with `follow`, again and again while a run is live."""
    began = time.monotonic()
    is_live = write()
    pause_s = max(REFRESH_S, PAUSES * (time.monotonic() - began))
    size = target.stat().st_size
    if options.as_json:
        print_json_line(ReportResult(report=str(target), bytes=size, runs=names, live=is_live))
    else:
        print(target)
    sys.stdout.flush()
    try:
        while is_live and options.follow:
            time.sleep(pause_s)
            is_live = write()
    except KeyboardInterrupt:
        raise InterruptError(f"{target} shows the state of {time.strftime('%H:%M:%S')}") from None
