"""Checkpoints made and read in this process, on some of its eight CPU devices."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.support.harness import Bench, bench
from tests.support.jobs import job_of
from trainer.checkpoint.facts import Progress
from trainer.checkpoint.manager import Checkpoints
from trainer.checkpoint.restore import Restored
from trainer.checkpoint.saver import Saver
from trainer.contract.config.job import Job
from trainer.data import token_cache
from trainer.distributed.process_env import Environment
from trainer.step.train_state import TrainState
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import Report


def equal(one: Any, other: Any) -> bool:
    """Whether all arrays of two states have the same content."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


class Said(Report):
    """A report that keeps what was said."""

    def __init__(self, job: Job, run_dir: Path) -> None:
        self.events = Events(Environment())
        super().__init__(job, Environment(), run_dir, self.events)
        self.lines: list[str] = []

    def print_line(self, line: str) -> None:
        self.lines.append(line)


@dataclass(frozen=True)
class Kept:
    """One attempt of a run that saves and restores."""

    made: Bench
    checkpoints: Checkpoints
    saver: Saver
    said: Said

    @classmethod
    def of(cls, run_dir: Path, devices: int = 2, attempt: int = 1, **changes: Any) -> "Kept":
        job = job_of(**{"checkpoint": {"every_steps": 1, "keep": 10}, **changes})
        made = bench(job, devices)
        run_dir.mkdir(exist_ok=True)
        tokens, said = token_cache.load(job.data), Said(job, run_dir)
        opened = Checkpoints.open(
            job,
            made.plan,
            tokens,
            run_dir,
            Environment(attempt=attempt),
            made.program.shapes,
            said,
        )
        assert opened
        return cls(made, opened, Saver(opened.folder, opened.lease, opened.run, said), said)

    @property
    def folder(self) -> Path:
        return Path(self.checkpoints.folder)

    def save(self, steps: int, eval_loss: float | None = None) -> TrainState[jax.Array]:
        """Trains `steps` steps and saves; the state, on the host."""
        state, metrics = self.made.run(steps)
        progress = Progress(steps, steps * 8, float(metrics[-1].loss), eval_loss)
        self.saver.save(progress, state)
        return jax.device_get(state)

    def saved(self, steps: int) -> TrainState[jax.Array]:
        """The same, with the save at its end."""
        state = self.save(steps)
        error = self.saver.poll(wait=True)
        assert error is None, error
        return state

    def restore(self) -> Restored | None:
        program = self.made.program
        restorer = self.checkpoints.restorer(self.said)
        return restorer.newest(program.shapes, program.shardings)
