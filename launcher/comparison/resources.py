"""What a run has reached, and what it has used."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from launcher.runs import live
from launcher.runs.run_record import RunRecord


@dataclass(frozen=True)
class RunFacts:
    """A run in a comparison."""

    name: str
    folder: str
    state: str
    """Its state, as in `launch list`."""
    alive: bool
    """Whether a process runs it; its figures are those of this moment."""
    step: int | None
    """Last step; null before the first."""
    steps: int | None
    """Number of steps of its job; null for a command."""
    attempts: int
    loss: float | None
    """Last training loss, in nats per target."""
    eval_loss: float | None
    """Last loss on held-out data."""
    best_eval_loss: float | None
    """Lowest loss on held-out data."""
    tokens: int | None
    """Tokens trained on, without those of steps that were repeated."""
    tokens_per_s: float | None
    """Median over the steps, of all devices together."""
    wall_s: float
    """Seconds of all attempts together."""
    goodput: float | None
    """Fraction of the wall time in steps that counted; null when the program reports no steps."""
    devices: int | None
    """Number of chips of the last attempt, or of simulated devices."""
    chip_hours: float
    """Hours in which attempts had hosts, times their chips, as in `launch list --cost`."""
    dollars: float | None
    """Cost of all chip-hours in US dollars; null when a part of it is not known."""


def facts_of(record: RunRecord) -> RunFacts:
    """Returns what a run has reached and used."""
    status, goodput, plan = record.status, record.goodput, record.last_plan
    losses, evaluations = _values(record, "loss"), _values(record, "eval_loss")
    tokens, rates = _values(record, "tokens"), _values(record, "tokens_per_s")
    usage = live.read_usage(record.folder, is_alive=status.is_alive)
    return RunFacts(
        name=record.name,
        folder=str(record.folder),
        state=status.displayed_state,
        alive=status.is_alive,
        step=status.step,
        steps=status.steps,
        attempts=status.attempt or 0,
        loss=losses[-1] if losses else None,
        eval_loss=evaluations[-1] if evaluations else None,
        best_eval_loss=min(evaluations, default=None),
        tokens=tokens[-1] if tokens else None,
        tokens_per_s=median(rates) if rates else None,
        wall_s=goodput.wall_s,
        goodput=goodput.share,
        devices=plan.world.devices if plan else None,
        chip_hours=usage.chip_hours,
        dollars=usage.cost,
    )


def _values(record: RunRecord, name: str) -> list[Any]:
    """Returns the values of a metric in the order of steps."""
    found = (line.get(name) for line in record.metrics)
    return [value for value in found if isinstance(value, int | float)]
