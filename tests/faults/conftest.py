"""Launches in a folder of the test, and what they must not leave behind."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.launches import Launcher
from tests.leftovers import Traces


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    for process in traces.processes():
        os.kill(process, signal.SIGKILL)
    traces.remove()


@pytest.fixture
def launch(tmp_path: Path, traces: Traces) -> Launcher:
    return Launcher(tmp_path, traces)
