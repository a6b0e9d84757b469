"""The table of a sweep: one row per point, the best one first."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from launcher.core.formatting import format_seconds, pluralize
from launcher.core.printable import plain
from launcher.sweep.points import labels
from launcher.ui.console import STATE_STYLES, table_console
from trainer.contract.config.yaml import dump_inline

_STYLES: Mapping[str, str] = {**STATE_STYLES}


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """A point of a sweep: a row of the table."""

    name: str
    folder: str
    values: Mapping[str, Any]
    """Value of each swept key."""
    state: str
    """State of its run; `stopped early`, or `not started`."""
    error: str | None
    """Why the sweep did not continue it; None without a failure."""
    step: int | None
    """Last step; None before the first one."""
    steps: int | None
    """Number of steps of the job; None for a command."""
    eval_loss: float | None
    """Last evaluation loss; None without one."""
    loss: float | None
    """Last training loss; None without one."""
    seconds: float | None
    """Seconds of its run, over all attempts; None before it has started."""
    compilations: int
    """Number of its attempts that compiled the step, and did not read it from the cache."""

    @property
    def order(self) -> tuple[int, float]:
        """Sort key: points that came further first, then the lower loss."""
        loss = self.loss if self.eval_loss is None else self.eval_loss
        return (-(self.step or 0), math.inf if loss is None or math.isnan(loss) else loss)


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """A sweep: its points and their sums."""

    name: str
    rungs: Sequence[int]
    """Steps at which the better half of the points continued; empty without early stopping."""
    steps: int
    """Last steps of all points, added up."""
    compilations: int
    """Compilations of all points."""
    points: Sequence[PointResult]
    """The points, the best one first."""


def result(name: str, rungs: Sequence[int], rows: Sequence[PointResult]) -> SweepResult:
    """Returns a sweep for a command's JSON output, with the rows in order."""
    return SweepResult(
        name=name, rungs=rungs, steps=_steps(rows), compilations=_compilations(rows), points=rows
    )


def show(rows: Sequence[PointResult]) -> None:
    """Prints the rows in order, and their sums."""
    console, keys = table_console(), labels(list(rows[0].values))
    table = Table(box=None, pad_edge=False)
    for title in (*keys.values(), "step", "eval loss", "loss", "time", "compiled"):
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("state", "run"):
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row, list(keys)))
    console.print(table)
    total = f"{_steps(rows)} steps, {pluralize(_compilations(rows), 'compilation')}"
    console.print(Text(total))


def _cells(row: PointResult, keys: Sequence[str]) -> list[Text]:
    return [
        *(Text(plain(dump_inline(row.values[key]))) for key in keys),
        Text("" if row.step is None else f"{row.step}/{row.steps}" if row.steps else f"{row.step}"),
        Text(_loss(row.eval_loss)),
        Text(_loss(row.loss)),
        Text("" if row.seconds is None else format_seconds(row.seconds)),
        Text(str(row.compilations or "")),
        Text(row.state, style=_STYLES.get(row.state, "")),
        Text(row.name),
    ]


def _loss(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"


def _steps(rows: Sequence[PointResult]) -> int:
    return sum(row.step or 0 for row in rows)


def _compilations(rows: Sequence[PointResult]) -> int:
    return sum(row.compilations for row in rows)
