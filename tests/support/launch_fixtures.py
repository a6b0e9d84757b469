"""Launches in a folder of the test, and what they must not leave behind."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fault_matrix
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch, Launcher


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


@pytest.fixture
def start(launch: Launcher) -> Callable[..., Launch]:
    """Start the matrix's job on two hosts."""
    (launch.folder / "job.yaml").write_text(fault_matrix.JOB)

    def start(name: str = "faulty", provider: str = "", more: str = "", *words: str) -> Launch:
        return launch.on(launch.cluster_file(f"{name}-cluster", provider, more), name, words)

    return start


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The curve of the matrix's job in a run that nothing happened to."""
    traces, folder = Traces(), tmp_path_factory.mktemp("unbroken")
    launcher = Launcher(folder, traces)
    (folder / "job.yaml").write_text(fault_matrix.JOB)
    run = launcher("unbroken")
    assert run.wait() == 0, run.output
    traces.remove()
    return fault_matrix.curve_of(run)
