"""`python -m trainer --standby`: imports everything, waits, and trains when it is started."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gang import DEADLINE_S
from tests.support.jobs import job_of
from tests.support.processes import wait_until
from trainer.contract.config.loader import dump
from trainer.contract.protocol import start

MODEL = """\
import sys

def build(vocab_size, rngs):
    raise ValueError(f"version {version} of the model, built by {{sys.orig_argv}}")
"""
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}


class Standby:
    """One standby process and the pipe for its start."""

    def __init__(self, folder: Path) -> None:
        reading, self._writing = os.pipe()
        self.environment = {
            **ENVIRONMENT,
            "PYTHONPATH": str(folder),
            "SLIPWAY_RUN_DIR": str(folder / "run"),
            "SLIPWAY_START_FD": str(reading),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainer", "--standby", str(folder / "job.yaml")],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=[reading],
        )
        os.close(reading)
        name = Path(f"/proc/{self.process.pid}/comm")
        wait_until(lambda: name.read_text() == "standby\n")

    def start(self, **changes: str) -> None:
        now = {**self.environment, **changes}
        os.write(self._writing, start.encode(self.environment, now))

    def close(self) -> None:
        os.close(self._writing)

    def output(self) -> str:
        return self.process.communicate(timeout=DEADLINE_S)[0]


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Standby]:
    (tmp_path / "my_model.py").write_text(MODEL.format(version=1))
    job = job_of(steps=2, model={"module": "my_model:build"})
    (tmp_path / "job.yaml").write_text(dump(job), encoding="utf-8")
    standby = Standby(tmp_path)
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
