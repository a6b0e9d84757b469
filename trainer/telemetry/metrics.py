"""Reports of a run's numbers: metrics.jsonl, samples.jsonl, events, printed lines."""

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.estimates.flops import flops_per_token
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import Plan, World
from trainer.contract.planning.save_interval import SaveInterval
from trainer.contract.protocol.events import (
    CheckpointIntervalEvent,
    CheckpointSavedEvent,
    CheckpointsDiscardedEvent,
    EvalEvent,
    Event,
    RestoredEvent,
    RestoreSource,
    SampledEvent,
    SaveFailedEvent,
    SaveProgressEvent,
    SpikeEvent,
    StepEvent,
    WarningEvent,
    WrongHostEvent,
)
from trainer.distributed.process_env import Environment
from trainer.telemetry.events import Events
from trainer.telemetry.tensorboard import Board
from trainer.telemetry.wandb_writer import WandbRun

LARGEST_EXPONENT = 700
"""Largest exponent whose perplexity is still a float64."""


@dataclass(frozen=True)
class Evaluation:
    eval_loss: float
    """Mean cross-entropy per target, in nats."""
    eval_losses: Mapping[str, float] = field(default_factory=dict)
    """Loss of each source of a mixture by name; `eval_loss` is then their weighted mean."""

    @property
    def eval_perplexity(self) -> float:
        return math.exp(min(self.eval_loss, LARGEST_EXPONENT))


@dataclass(frozen=True)
class MultipleChoiceResult:
    """Shares of the questions that the model answers correctly."""

    accuracy: float
    """Accuracy by the total log-likelihood of a choice's tokens."""
    accuracy_normalized: float
    """Accuracy by log-likelihood per character, as `acc_norm` of lm-evaluation-harness."""


@dataclass(frozen=True)
class TaskResults:
    """Metrics of the tasks of an evaluation."""

    choices: MultipleChoiceResult | None
    """Those of `eval.multiple_choice`; None without it."""
    metrics: Mapping[str, float]
    """Name of a task, a slash, and name of a metric -> its value, for `eval.tasks`."""


@dataclass(frozen=True)
class EvalResult:
    """Results of one evaluation; None for a kind that the job or its data does not have."""

    evaluation: Evaluation | None
    tasks: TaskResults | None
    seconds: float

    @property
    def eval_loss(self) -> float | None:
        return self.evaluation.eval_loss if self.evaluation else None


def peak_flops(world: World) -> float | None:
    """Returns the peak FLOP/s of all devices together in bfloat16, None when it is unknown.

    Simulated devices have the accelerator's name, not its speed.
    """
    if world.on_cpu:
        return None
    try:
        peak = accelerators.parse(world.accelerator).peak_bf16_flops
    except ValueError:
        return None
    return None if peak is None else peak * world.devices


class Rates:
    """Rates of a step, computed from its time."""

    def __init__(self, job: Job, plan: Plan):
        self._seq_len = job.data.seq_len
        self._tokens = job.data.global_batch * job.data.seq_len
        peak = peak_flops(plan.world)
        self._peak = peak if isinstance(job.model, Model) else None
        self._flops = self._tokens * flops_per_token(job, plan) if self._peak else 0.0

    def of(self, examples: int, step_time_s: float) -> dict[str, object]:
        """Returns `tokens` (of all `examples` so far), `step_time_s`, `tokens_per_s` and `mfu`."""
        rate = None if self._peak is None else self._flops / step_time_s / self._peak
        return {
            "tokens": examples * self._seq_len,
            "step_time_s": step_time_s,
            "tokens_per_s": self._tokens / step_time_s,
            "mfu": rate,
        }


class LinesFile:
    """A file that process 0 appends to, line by line; other processes write nothing."""

    def __init__(self, path: Path, process: int):
        self._path = path if process == 0 else None
        if self._path and _ends_torn(self._path):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def write(self, line: dict[str, object]) -> None:
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _ends_torn(path: Path) -> bool:
    """Returns whether a killed attempt left half a line, which the next one must not continue."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


PRINT_EVERY_S = 2.0
EVENT_TEXT_CHARACTERS = 2000


class Report:
    """Reports steps and evaluations. Only process 0 writes and prints; all send events."""

    def __init__(self, job: Job, environment: Environment, run_dir: Path, events: Events):
        self._job, self._attempt, self._events = job, environment.attempt, events
        self._is_first = environment.process == 0
        self._file = LinesFile(run_dir / "metrics.jsonl", environment.process)
        self._samples = LinesFile(run_dir / "samples.jsonl", environment.process)
        self._boards = self._opened(run_dir) if self._is_first else []
        self._printed_s = 0.0

    def _opened(self, run_dir: Path) -> list[Board | WandbRun]:
        boards: list[Board | WandbRun] = [Board(self._job, run_dir)]
        if self._job.wandb:
            boards += [WandbRun(self._job, self._job.wandb, run_dir, self.print_line, self.warn)]
        return boards

    def close(self) -> None:
        """Writes pending reports and closes; call it however the run ends."""
        for board in self._boards:
            board.close()

    def step(self, step: int, fields: dict[str, Any]) -> None:
        last = self._job.last_step
        if step % self._job.log_every == 0 or step in (1, last):
            self._file.write({"step": step, **fields, "attempt": self._attempt})
            self._show(step, fields)
        self._events.emit(StepEvent(step=step, **fields))
        if step in (1, last) or time.monotonic() - self._printed_s > PRINT_EVERY_S:
            self._printed_s = time.monotonic()
            self.print_line(
                f"step {step}/{last}  loss {fields['loss']:.4f}  "
                f"lr {fields['learning_rate']:.2e}  {fields['tokens_per_s']:,.0f} tok/s"
            )

    def spike(self, event: SpikeEvent, message: str) -> None:
        """Reports a spike of the loss or the gradient norm."""
        self._emit(event)
        self.print_line(f"spike: {message}")

    def wrong_host(self, event: WrongHostEvent, message: str) -> None:
        """Reports that hosts compute other numbers than the rest."""
        self._emit(event)
        self.print_line(f"check of hosts: {message}")

    def evaluation(self, step: int, result: EvalResult) -> None:
        """Reports the losses on held-out data and the results of tasks, if there are any."""
        numbers, text = dict[str, Any](), f"step {step}/{self._job.last_step}"
        evaluation, tasks = result.evaluation, result.tasks
        losses = evaluation.eval_losses if evaluation else {}
        if evaluation:
            loss, perplexity = evaluation.eval_loss, evaluation.eval_perplexity
            numbers |= {"eval_loss": loss}
            text += f"  eval_loss {loss:.4f}"
            if not self._job.dpo:  # its loss is not one of tokens
                numbers |= {"eval_perplexity": perplexity}
                text += f"  perplexity {perplexity:.3f}"
            text += "".join(f"  {name} {one:.4f}" for name, one in losses.items())
        if tasks and tasks.choices:
            numbers |= asdict(tasks.choices)
            text += f"  accuracy {tasks.choices.accuracy:.2%}"
            text += f"  normalized by length {tasks.choices.accuracy_normalized:.2%}"
        metrics = tasks.metrics if tasks else {}
        text += "".join(f"  {name} {one:.4g}" for name, one in metrics.items())
        line: dict[str, Any] = {
            "step": step,
            **numbers,
            **({"eval_losses": losses} if losses else {}),
            **({"tasks": metrics} if metrics else {}),
        }
        self._file.write({**line, "evaluation_s": result.seconds, "attempt": self._attempt})
        self._show(step, {**numbers, **metrics})
        self._events.emit(EvalEvent(**line, evaluation_s=result.seconds))
        self.print_line(text)

    def sampled(self, step: int, text: str) -> None:
        """Reports the text that the model wrote after a step before the last one."""
        self._samples.write({"step": step, "text": text, "attempt": self._attempt})
        self._show(step, {}, text)
        self._emit(SampledEvent(step=step, text=text[:EVENT_TEXT_CHARACTERS]))
        self.print_line(f"sample of step {step}:\n{text}")

    def finished(self, text: str | None) -> None:
        """Reports the text that the model wrote after the last step."""
        self._show(self._job.last_step, {}, text)
        if text is not None:
            self.print_line(f"sample:\n{text}")

    def _show(self, step: int, fields: dict[str, Any], text: str | None = None) -> None:
        for board in self._boards:
            board.numbers(step, fields)
            if text is not None:
                board.text("sample", step, text)

    def saving(self, step: int, written: int, total: int) -> None:
        """Reports that this process has written `written` of a checkpoint's `total` bytes."""
        self._events.emit(SaveProgressEvent(step=step, written=written, total=total))

    def saved(self, step: int, size: int, seconds: float, blocked_s: float) -> None:
        """Reports a committed checkpoint; no step ran for `blocked_s` of its `seconds`."""
        self._emit(
            CheckpointSavedEvent(step=step, bytes=size, seconds=seconds, blocked_s=blocked_s)
        )
        self.print_line(
            f"checkpoint of step {step} saved: {size / 2**20:,.1f} MiB in {seconds:.1f} s"
        )

    def save_interval(self, chosen: SaveInterval, is_news: bool) -> None:
        """Reports the interval between checkpoints, when the job leaves it to the trainer.

        It is printed only if it is news.
        """
        self._emit(CheckpointIntervalEvent(**asdict(chosen)))
        if is_news:
            self.print_line(f"checkpoints: {chosen}")

    def save_failed(self, step: int, message: str) -> None:
        self._emit(SaveFailedEvent(step=step, message=message))
        self.print_line(f"checkpoint of step {step} NOT saved: {message}")

    def discarded(self, steps: Sequence[int], newest: int | None) -> None:
        """Reports that checkpoints were set aside; `newest` is the newest one that is left."""
        self._emit(CheckpointsDiscardedEvent(newest=newest))
        for step in steps:
            self.print_line(f"checkpoint of step {step} set aside: a host may be wrong in it")

    def restored(self, step: int, examples: int, source: RestoreSource, message: str) -> None:
        self._emit(RestoredEvent(step=step, examples=examples, source=source, message=message))
        self.print_line(message)

    def print_if_resumed(self, line: str) -> None:
        if self._attempt > 1:
            self.print_line(line)

    def warn(self, message: str) -> None:
        self._emit(WarningEvent(message=message))
        self.print_line(f"warning: {message}")

    def _emit(self, event: Event) -> None:
        """Emits one event for the whole run, from process 0."""
        if self._is_first:
            self._events.emit(event)

    def print_line(self, line: str) -> None:
        """Prints a line on process 0's standard output."""
        if self._is_first:
            print(line, flush=True)
