"""The watch over real trainers: it names who is stuck or slow, and leaves the others alone."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pytest

from launcher.core.results import Hang
from launcher.health.hangs import HangDetector, Limits
from launcher.health.stacks import innermost
from launcher.health.stragglers import Straggler
from tests.support import gang
from tests.support.jobs import job_of, world_of
from tests.support.processes import wait_until
from trainer.contract.protocol.events import StepEvent
from trainer.contract.protocol.wire import parse_event

pytestmark = pytest.mark.faults
LIMITS = Limits()
DEADLINE_S = 240.0
FOR_HOURS = job_of(steps=1_000_000)
# A sitecustomize.py: the examples of one host take long, from some number on.
SLOW_DATA = """\
import itertools, time
from trainer.data import pipeline

example, numbers = pipeline.example, itertools.count()

def slow(*arguments):
    if next(numbers) >= {after}:
        time.sleep({sleep_s})
    return example(*arguments)

pipeline.example = slow
"""


@dataclass
class Watched:
    """Trainers, and a watch that hears what they say."""

    run_dir: Path
    trainers: list[subprocess.Popen[bytes]]
    events: list[TextIO]
    steps: int = 0
    named: list[Straggler] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = HangDetector(len(self.trainers), LIMITS)
        self._half = [""] * len(self.events)

    def look(self) -> Hang | None:
        """Hear all that is new, and look."""
        for process, file in enumerate(self.events):
            *lines, self._half[process] = (self._half[process] + file.read()).split("\n")
            for event in filter(None, map(parse_event, lines)):
                self.watch.on_event(event, time.monotonic())
                if isinstance(event, StepEvent):
                    self.steps = max(self.steps, event.step)
            if self.trainers[process].poll() is not None:
                self.watch.on_end(process)
        self.named += self.watch.stragglers(time.monotonic())
        return self.watch.poll(time.monotonic())

    def wait_for(self, steps: int) -> None:
        """None of this is a hang."""
        ends = time.monotonic() + DEADLINE_S
        while self.steps < steps:
            assert self.look() is None
            assert time.monotonic() < ends, f"{self.steps} steps"
            time.sleep(0.2)

    def wait_for_hang(self) -> tuple[Hang, float]:
        """A hang, and after how many seconds it was seen."""
        begin = time.monotonic()
        while not (hang := self.look()):
            assert time.monotonic() - begin < DEADLINE_S, f"{self.steps} steps"
            time.sleep(0.2)
        return hang, time.monotonic() - begin

    def log(self, process: int) -> str:
        return (self.run_dir / f"output-{process}.log").read_text()

    def has_told_its_stacks(self, process: int) -> bool:
        """To the main thread's outermost frame, which is the last line of them all."""
        return "in _run_module_as_main\n" in self.log(process)


@contextlib.contextmanager
def trainers(folder: Path, slow_data: str = "", job=FOR_HOURS) -> Iterator[Watched]:
    """Two hosts; on the second one `slow_data` runs before the trainer."""
    (folder / "slow").mkdir()
    (folder / "slow" / "sitecustomize.py").write_text(slow_data)
    path = os.pathsep.join([str(folder / "slow"), os.environ.get("PYTHONPATH", "")])
    run_dir = folder / "run"
    started = gang.start(job, world_of(2, 1), run_dir, host_env={1: {"PYTHONPATH": path}})
    try:
        with contextlib.ExitStack() as files:
            paths = [run_dir / f"events-{process}.jsonl" for process in range(len(started))]
            yield Watched(run_dir, started, [files.enter_context(path.open()) for path in paths])
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_run_that_goes_well_is_left_alone_from_start_to_end(tmp_path: Path) -> None:
    job = job_of(steps=60, eval={"every_steps": 20}, checkpoint={"every_steps": 25})
    with trainers(tmp_path, job=job) as run:
        run.wait_for(60)
        wait_until(lambda: run.look() or all(one.poll() is not None for one in run.trainers))
        assert [trainer.poll() for trainer in run.trainers] == [0, 0], run.log(0)
        assert run.named == []


@pytest.mark.full
def test_a_stopped_trainer_is_named(tmp_path: Path) -> None:
    with trainers(tmp_path) as run:
        run.wait_for(10)
        run.trainers[1].send_signal(signal.SIGSTOP)
        hang, took_s = run.wait_for_hang()
        assert (hang.silent, [one.process for one in hang.behind]) == (True, [1])
        assert took_s < LIMITS.silence_s + 3


def test_a_trainer_asleep_in_its_data_loader_is_named_and_shows_where(tmp_path: Path) -> None:
    with trainers(tmp_path, SLOW_DATA.format(after=200, sleep_s=3600)) as run:
        run.wait_for(10)
        hang, _ = run.wait_for_hang()
        (behind,) = hang.behind
        assert (hang.silent, behind.process, behind.phase) == (False, 1, "data")
        assert behind.waited_s < LIMITS.learned_floor_s["train"] + 1
        for trainer in run.trainers:
            trainer.send_signal(signal.SIGUSR1)
        wait_until(lambda: all(run.has_told_its_stacks(process) for process in (0, 1)))
        assert innermost(run.log(1))[0].startswith("trainer/data/loader.py:")
        assert innermost(run.log(0))[0].startswith("trainer/loop.py:")


@pytest.mark.full
def test_a_host_with_slow_data_is_named_and_lives_on(tmp_path: Path) -> None:
    with trainers(tmp_path, SLOW_DATA.format(after=0, sleep_s=0.05)) as run:
        wait_until(lambda: run.look() or run.named, DEADLINE_S)
        (slow,) = run.named
        assert (slow.process, slow.measure) == (1, "host_time_s")
        assert slow.factor > 2
        run.wait_for(run.steps + 5)
