"""Where a run's numbers go: metrics.jsonl, the launcher's events, and a line now and then."""

import time
from pathlib import Path
from typing import Any

from trainer.environment import Environment
from trainer.evaluate import Evaluation
from trainer.events import Events
from trainer.metrics import MetricsFile
from trainer.spec.job import Job

PRINT_EVERY_S = 2.0


class Report:
    """Numbers of steps and evaluations. Only process 0 writes and prints; all send events."""

    def __init__(self, job: Job, environment: Environment, run_dir: Path, events: Events):
        self._job, self._attempt, self._events = job, environment.attempt, events
        self._is_first = environment.process == 0
        self._file = MetricsFile(run_dir, environment.process)
        self._printed_s = 0.0

    def step(self, step: int, fields: dict[str, Any]) -> None:
        last = self._job.steps
        if step % self._job.log_every == 0 or step in (1, last):
            self._file.write({"step": step, **fields, "attempt": self._attempt})
        self._events.emit("step", step=step, **fields)
        if step in (1, last) or time.monotonic() - self._printed_s > PRINT_EVERY_S:
            self._printed_s = time.monotonic()
            self.say(
                f"step {step}/{last}  loss {fields['loss']:.4f}  "
                f"lr {fields['learning_rate']:.2e}  {fields['tokens_per_s']:,.0f} tok/s"
            )

    def evaluation(self, step: int, evaluation: Evaluation, took_s: float) -> None:
        loss, perplexity = evaluation.eval_loss, evaluation.eval_perplexity
        line = {"step": step, "eval_loss": loss, "eval_perplexity": perplexity}
        self._file.write({**line, "evaluation_s": took_s, "attempt": self._attempt})
        self._events.emit("evaluated", **line, evaluation_s=took_s)
        self.say(
            f"step {step}/{self._job.steps}  eval_loss {loss:.4f}  perplexity {perplexity:.3f}"
        )

    def say(self, line: str) -> None:
        """A line on process 0's standard output."""
        if self._is_first:
            print(line, flush=True)
