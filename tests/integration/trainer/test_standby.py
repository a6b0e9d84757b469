"""`python -m trainer --standby`: imports everything, waits, and trains when it is started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.gang import DEADLINE_S
from tests.support.jobs import job_of
from tests.support.processes import wait_until
from trainer.contract.config.loader import dump
from trainer.contract.protocol.start import Start

MODEL = """\
import sys

def build(vocab_size, rngs):
    raise ValueError(f"version {version} of the model, built by {{sys.orig_argv}}")
"""
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


class Standby:
    """One standby process and the pipe for its start."""

    def __init__(self, folder: Path, *job: str, cwd: Path | None = None) -> None:
        reading, self._writing = os.pipe()
        self.environment = {
            **ENVIRONMENT,
            "PYTHONPATH": str(folder),
            "SLIPWAY_RUN_DIR": str(folder / "run"),
            "SLIPWAY_START_FD": str(reading),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainer", "--standby", *job],
            env=self.environment,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=[reading],
        )
        os.close(reading)
        name = Path(f"/proc/{self.process.pid}/comm")
        wait_until(lambda: name.read_text() == "standby\n")

    def start(self, **changes: str) -> None:
        self._send({**self.environment, **changes})

    def assign(self, arguments: list[str], cwd: Path) -> None:
        self._send(self.environment, arguments, str(cwd))

    def _send(self, now: dict[str, str], *run: Any) -> None:
        os.write(self._writing, Start.of(self.environment, now, *run).encode())

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED)
        yield
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        os.close(self._writing)

    def output(self) -> str:
        return self.process.communicate(timeout=DEADLINE_S)[0]


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Standby]:
    (tmp_path / "my_model.py").write_text(MODEL.format(version=1))
    job = job_of(steps=2, model={"module": "my_model:build"})
    (tmp_path / "job.yaml").write_text(dump(job), encoding="utf-8")
    standby = Standby(tmp_path, str(tmp_path / "job.yaml"))
    yield standby
    standby.process.kill()
    standby.process.wait()


def test_one_that_is_not_needed_ends_without_a_trace(standby: Standby, tmp_path: Path) -> None:
    standby.close()
    assert standby.output() == ""
    assert standby.process.returncode == 0
    assert not (tmp_path / "run").exists()


def test_it_trains_in_the_environment_of_its_start(standby: Standby, tmp_path: Path) -> None:
    standby.start(SLIPWAY_RUN_DIR=str(tmp_path / "other"))
    output = standby.output()
    assert "version 1 of the model" in output and "--standby" in output
    assert (tmp_path / "other").exists() and not (tmp_path / "run").exists()


def test_code_that_changed_meanwhile_is_the_code_that_runs(
    standby: Standby, tmp_path: Path
) -> None:
    (tmp_path / "my_model.py").write_text(MODEL.format(version=2))
    standby.start()
    output = standby.output()
    assert "version 2 of the model" in output and "--standby" not in output


@pytest.fixture
def of_no_run(tmp_path: Path) -> Iterator[Standby]:
    """A standby process that has started in another folder than that of the run that comes."""
    work, elsewhere = tmp_path / "work", tmp_path / "elsewhere"
    for folder in (work, elsewhere):
        folder.mkdir()
    (work / "my_model.py").write_text(MODEL.format(version=1))
    job = job_of(steps=2, model={"module": "my_model:build"})
    (work / "job.yaml").write_text(dump(job), encoding="utf-8")
    standby = Standby(tmp_path, cwd=elsewhere)
    yield standby
    standby.process.kill()
    standby.process.wait()


def test_one_without_a_job_works_in_the_folder_of_its_run(
    of_no_run: Standby, tmp_path: Path
) -> None:
    of_no_run.assign(["job.yaml"], tmp_path / "work")
    output = of_no_run.output()
    assert "version 1 of the model" in output and "--standby" in output
    assert (tmp_path / "run").exists()


def test_one_without_a_job_can_check_its_host_and_wait_for_the_start(
    of_no_run: Standby, tmp_path: Path
) -> None:
    with of_no_run.stopped():  # So that it finds both lines in its pipe.
        of_no_run.assign(["--check", "--standby", "job.yaml"], tmp_path / "work")
        of_no_run.start(SLIPWAY_RUN_DIR=str(tmp_path / "other"))
    assert "version 1 of the model" in of_no_run.output()
    assert (tmp_path / "other").exists()


def test_a_run_with_a_trainer_of_its_own_is_trained_by_that_one(
    of_no_run: Standby, tmp_path: Path
) -> None:
    (tmp_path / "work" / "trainer").mkdir()
    (tmp_path / "work" / "trainer" / "__init__.py").touch()
    (tmp_path / "work" / "trainer" / "__main__.py").write_text("print('another trainer')")
    of_no_run.assign(["job.yaml"], tmp_path / "work")
    assert of_no_run.output() == "another trainer\n"


def test_one_without_a_job_that_no_run_needs_ends(of_no_run: Standby) -> None:
    of_no_run.close()
    assert of_no_run.output() == ""
    assert of_no_run.process.returncode == 0
