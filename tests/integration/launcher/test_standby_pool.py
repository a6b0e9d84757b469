"""The trainers that wait on a warm cluster, and the launches that take them over."""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from launcher.gang.early_standby import StandbyOfCluster
from launcher.host.process import TakenProcess
from launcher.host.standby_pool import SOCKET, TRAINER
from tests.support.host_programs import collect
from tests.support.processes import wait_until
from trainer.contract.protocol.exit_codes import ProgramExit


class Pool:
    """A pool of trainers."""

    def __init__(self, folder: Path, count: int) -> None:
        self.path, self._count = folder / SOCKET, count
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launcher.host.standby_pool", str(folder), str(count)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "POOL": str(folder)},
        )

    def waiting(self) -> list[psutil.Process]:
        """Its trainers that wait, as soon as all do."""
        wait_until(lambda: len(self._trainers("standby")) == self._count)
        return self._trainers("standby")

    def is_empty(self) -> bool:
        return not self._trainers("standby") and not self._trainers("trainer")

    def _trainers(self, name: str) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error):
                is_own = process.name() == name
                if is_own and process.environ().get("POOL") == str(self.path.parent):
                    found.append(process)
        return found


@pytest.fixture
def pool(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pool]:
    """A pool of one trainer, unless the test asks for more."""
    pool = Pool(tmp_path_factory.mktemp("p"), getattr(request, "param", 1))
    pool.waiting()
    yield pool
    pool.process.terminate()
    pool.process.wait()
    wait_until(pool.is_empty)


@pytest.mark.parametrize("pool", [2], indirect=True)
def test_one_launch_gets_a_trainer_for_each_process_and_a_second_one_none(pool: Pool) -> None:
    with StandbyOfCluster(pool.path) as first:
        assert all((offer := first.offer(n)) and offer.command == TRAINER for n in range(2))
        assert first.offer(2) is None
        with StandbyOfCluster(pool.path) as second:
            assert second.offer(0) is None


def test_one_that_was_taken_prints_into_the_log_of_its_run(pool: Pool, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "host-0000.log"
    log.parent.mkdir()
    log.write_text("of an earlier attempt\n")
    with StandbyOfCluster(pool.path) as standby:
        offer = standby.offer(0)
        assert offer
        given = offer.assign([*TRAINER, "missing.yaml"], offer.environment, str(tmp_path))
        taken = TakenProcess(given)
        taken.write_output(log)
        standby.close()
        update = collect(taken)
    assert update.status == ProgramExit.BAD_CONFIGURATION << 8
    assert update.lines == ["missing.yaml: no such file"]
    assert log.read_text() == "of an earlier attempt\nmissing.yaml: no such file\n"


def test_those_for_the_next_run_start_when_the_run_has_ended(pool: Pool) -> None:
    before = pool.waiting()
    with StandbyOfCluster(pool.path) as standby:
        standby.close()
        wait_until(pool.is_empty)
    assert not set(before) & set(pool.waiting())
    with StandbyOfCluster(pool.path) as standby:
        assert standby.offer(0)


def test_one_that_has_died_is_not_offered(pool: Pool) -> None:
    (waiting,) = pool.waiting()
    waiting.kill()
    waiting.wait(10.0)
    with StandbyOfCluster(pool.path) as standby:
        assert standby.offer(0) is None


def test_a_launch_that_dies_before_it_reads_its_answer_does_no_harm(pool: Pool) -> None:
    with socket.socket(socket.AF_UNIX) as launch:
        launch.connect(str(pool.path))
        select.select([launch], [], [])
    wait_until(lambda: is_offered(pool))


def is_offered(pool: Pool) -> bool:
    """Whether a launch would get a trainer now."""
    with StandbyOfCluster(pool.path) as standby:
        return standby.offer(0) is not None


def test_without_a_pool_there_are_none(tmp_path: Path) -> None:
    with StandbyOfCluster(tmp_path / SOCKET) as standby:
        assert standby.offer(0) is None
