"""`launch compare`: how runs differ from the first one."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.commands.run_folders import run_folders
from launcher.comparison.comparison import compare
from launcher.core.errors import UsageError
from launcher.core.json_output import print_json
from launcher.report.files import check_target, write_report
from launcher.report.page import report
from launcher.runs.run_record import read_record
from launcher.ui.comparison_view import show, verdicts


@dataclass(frozen=True)
class CompareOptions:
    """The options of `launch compare`."""

    runs: Path
    report: Path | None
    """Where to write the report of the runs; None for no report."""
    as_json: bool


def compare_runs(names: Sequence[str], options: CompareOptions) -> None:
    """Compares runs with the first of them, and prints the result.

    Raises UsageError for fewer than two runs, for unknown runs, and for a report that cannot be
    written, before it prints or writes anything.
    """
    folders = run_folders(names, options.runs)
    if len(folders) < 2:
        raise UsageError("launch compare: name two or more different runs")
    if options.report:
        check_target(options.report, "--report")
    records = [read_record(folder) for folder in folders]
    found = compare(records)
    if options.report:
        page = report(records, time.time(), verdicts(found))
        write_report(options.report, page, "--report")
    if options.as_json:
        print_json(found)
        return
    show(found)
    if options.report:
        print(f"report: {options.report}")
