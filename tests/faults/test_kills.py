"""`kill -9` of a whole run, again and again, often during a save: nothing is lost."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import gang
from tests.support.jobs import job_of, world_of
from tests.support.processes import wait_until
from tests.support.sampling import IS_FULL
from trainer.checkpoint.folder_check import TEMPORARY
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.metrics_file import curve

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

KILLS = 30 if IS_FULL else 4
STEPS = 90 if IS_FULL else 30
KEEP = 3
WORLD = world_of(2, 1)
PACE = 1.5
"""Steps that an attempt should gain: enough to get on, too few to finish before the last one."""
LONG_S, SHORT_S = 0.3, 0.05
"""How long after a save has begun a kill comes at the latest; the one about what a save takes."""
SAME = ("step", "loss", "grad_norm", "learning_rate", "tokens", "epoch", "examples")


def _job():
    """Two steps and a save take about the same time."""
    return job_of(
        steps=STEPS,
        model={"layers": 2, "d_model": 256, "d_ff": 1024, "dropout": 0.1},
        data={"seq_len": 16, "global_batch": 2},
        optimizer={"learning_rate": 3e-4},
        checkpoint={"every_steps": 2, "keep": KEEP},
    )


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@dataclass(frozen=True)
class Killed:
    """What was found after an attempt was ended."""

    saving: bool
    """In a save: its unfinished folder is there."""
    newest: int
    """The last step that was committed; 0: none."""


@dataclass
class Killer:
    """Starts a run's attempts and ends each with `kill -9` of all processes, by dice."""

    run_dir: Path
    dice: random.Random

    @property
    def folder(self) -> Path:
        return self.run_dir / "checkpoints"

    def kill(self, attempt: int) -> Killed:
        """One attempt, killed; what it left is whole."""
        started = gang.start(_job(), WORLD, self.run_dir, attempt)
        try:
            self._wait_for(lambda: self._steps(attempt) > 0, started)
            ahead = self.restored() > PACE * attempt
            if self.dice.random() < 0.75:
                self._wait_for_save(1 if ahead else self.dice.randint(1, 3), started)
            time.sleep(self.dice.uniform(0, SHORT_S if ahead else LONG_S))
            assert all(process.poll() is None for process in started), self._outputs()
        finally:
            for process in self.dice.sample(started, len(started)):
                process.kill()
            for process in started:
                process.wait()
        return self._look()

    def restored(self) -> int:
        """The step from which the last attempt went on; 0: from the start."""
        lines = (self.run_dir / "events-0.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        steps = [event["step"] for event in events if event["event"] == "restored"]
        return steps[0] if steps else 0

    def _look(self) -> Killed:
        names = [path.name for path in self.folder.iterdir()]
        assert not [name for name in names if checkpoint_metadata.DAMAGED in name], names
        steps = checkpoint_metadata.steps(self.folder)
        for step in steps:
            assert checkpoint_metadata.read(self.folder / str(step)).step == step
        saving = any(TEMPORARY in name for name in names)
        return Killed(saving, steps[0] if steps else 0)

    def _steps(self, attempt: int) -> int:
        """Steps that this attempt has made."""
        metrics = self.run_dir / "metrics.jsonl"
        text = metrics.read_text() if metrics.exists() else ""
        return sum(line.endswith(f'"attempt": {attempt}}}') for line in text.splitlines())

    def _wait_for_save(self, number: int, started: list[subprocess.Popen[bytes]]) -> None:
        """Until the `number`-th save that is seen from now on is in progress."""
        seen: set[str] = set()

        def begun() -> bool:
            seen.update(p.name for p in self.folder.iterdir() if TEMPORARY in p.name)
            return len(seen) >= number

        self._wait_for(begun, started)

    def _wait_for(self, condition, started: list[subprocess.Popen[bytes]]) -> None:
        def ended() -> bool:
            return any(process.poll() is not None for process in started)

        try:
            wait_until(lambda: condition() or ended())
        except TimeoutError:
            for process in started:
                process.send_signal(signal.SIGUSR1)  # prints the stacks
            time.sleep(2)
            raise AssertionError(f"it hangs:\n{self._outputs()}") from None
        assert not ended(), self._outputs()

    def _outputs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.run_dir.glob("output-*.log")))


def _curve(run_dir: Path) -> Iterator[list]:
    for line in curve((run_dir / "metrics.jsonl").read_text().splitlines()):
        yield [line[name] for name in SAME]


def test_repeated_kills_change_no_number(tmp_path: Path) -> None:
    never = gang.run(_job(), WORLD, tmp_path / "never-killed")
    assert never.codes == [0, 0], never.outputs
    killer = Killer(tmp_path / "killed", random.Random(0))
    kills: list[Killed] = []
    for attempt in range(1, KILLS + 1):
        before = kills[-1].newest if kills else 0
        kills.append(killer.kill(attempt))
        assert killer.restored() == before
        print(f"attempt {attempt}: from step {before}, {kills[-1]}")
    last = gang.run(_job(), WORLD, killer.run_dir, attempt=KILLS + 1)
    assert last.codes == [0, 0], last.outputs
    assert killer.restored() == kills[-1].newest
    assert sum(kill.saving for kill in kills) >= KILLS / 3
    assert list(_curve(killer.run_dir)) == list(_curve(never.run_dir))
    assert len(list(_curve(never.run_dir))) == STEPS
    names = {path.name for path in killer.folder.iterdir()}
    assert names == {"lease.json"} | {str(STEPS - 2 * n) for n in range(KEEP)}
