"""The table of a flow: one row per step, in the order in which they run."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from launcher.core.formatting import format_seconds
from launcher.core.printable import plain
from launcher.ui.console import STATE_STYLES, table_console

_STYLES = {str(state): style for state, style in STATE_STYLES.items()}


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """A step of a flow."""

    name: str
    folder: str
    after: Sequence[str]
    """The steps and runs that it waits for."""
    state: str
    """State of its run; `cancelled`, or `not started`."""
    error: str | None
    """Why it did not finish or start; None without a failure."""
    step: int | None
    """Last step; None before the first one."""
    steps: int | None
    """Number of steps of the job; None for a command."""
    loss: float | None
    """Last training loss; None without one."""
    eval_loss: float | None
    """Last evaluation loss; None without one."""
    seconds: float | None
    """Seconds of its run, over all attempts; None before it has started."""


@dataclass(frozen=True, kw_only=True)
class FlowResult:
    """A flow, with its steps in order."""

    name: str
    steps: Sequence[StepResult]


def show(rows: Sequence[StepResult]) -> None:
    """Prints the rows in order."""
    table = Table(box=None, pad_edge=False)
    for title in ("run", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("step", "loss", "eval loss", "time"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("after")
    for row in rows:
        table.add_row(*_cells(row))
    table_console().print(table)


def _cells(row: StepResult) -> list[Text]:
    return [
        Text(plain(row.name)),
        Text(row.state, style=_STYLES.get(row.state, "")),
        Text("" if row.step is None else f"{row.step}/{row.steps}" if row.steps else f"{row.step}"),
        Text("" if row.loss is None else f"{row.loss:.4f}"),
        Text("" if row.eval_loss is None else f"{row.eval_loss:.4f}"),
        Text("" if row.seconds is None else format_seconds(row.seconds)),
        Text(plain(", ".join(row.after))),
    ]
