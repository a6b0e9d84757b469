"""Launches in a folder of the test, and what they must not leave behind."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import fault_matrix
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sleepy_steps
from tests.support.launches import Launch, Launcher
from tests.support.xla_flags import FAST_COMPILATION


@contextmanager
def _unoptimized() -> Iterator[None]:
    """The compiler of trainers does not optimize: tiny programs run a few times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", FAST_COMPILATION)
        yield


@pytest.fixture(scope="package", autouse=True)
def without_optimization() -> Iterator[None]:
    with _unoptimized():
        yield


@pytest.fixture
def traces() -> Iterator[Traces]:
    with Traces() as traces:
        yield traces


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


@pytest.fixture
def unhurried(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of trainers sleep: runs that a test only waits beside leave the cores to others."""
    path = sleepy_steps(tmp_path_factory.mktemp("unhurried"))
    monkeypatch.setenv("PYTHONPATH", str(path), prepend=os.pathsep)


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The curve of the matrix's job in a run that nothing happened to: one for all workers."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    path = shared / "unbroken.json"
    with (shared / "unbroken.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with _unoptimized():  # fixtures of the session come before those of a package
                path.write_text(json.dumps(_unbroken(tmp_path_factory.mktemp("unbroken"))))
    return json.loads(path.read_text())


def _unbroken(folder: Path) -> list[list[Any]]:
    with Traces() as traces:
        launcher = Launcher(folder, traces)
        (folder / "job.yaml").write_text(fault_matrix.JOB)
        run = launcher("unbroken")
        assert run.wait() == 0, run.output
    return fault_matrix.curve_of(run)
