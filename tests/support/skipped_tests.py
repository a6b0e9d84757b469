"""Lists skipped tests in the file that SLIPWAY_SKIPPED names: `.ci/run` prints it at its end."""

import os
from pathlib import Path

import pytest

FILE = "SLIPWAY_SKIPPED"
_found: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the list, in the process that the workers report to."""
    if _found and FILE in os.environ and not hasattr(session.config, "workerinput"):
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in _found)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        _found.append(f"{report.nodeid}: {report.longrepr[2]}")
