"""`launch list`: all runs, newest first."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.core.errors import SlipwayError
from launcher.core.formatting import format_seconds, pluralize
from launcher.core.printable import plain
from launcher.core.usage import Usage
from launcher.queue.folder import Place, queues
from launcher.runs import live
from launcher.runs.status import RunStatus
from launcher.ui.console import STATE_STYLES, table_console

TITLES = ("name", "state", "attempt", "step", "loss", "cluster", "changed")
COST_TITLES = ("chip-hours", "cost")
RIGHT = ("attempt", "step", "loss", "changed", *COST_TITLES)
"""Titles of the columns of numbers."""


def serve_queues() -> dict[Path, Place]:
    """Starts the workers of queues that have entries and no worker, because it was killed.

    Returns the places of all waiting runs, by their folders. Prints a warning for a queue that
    cannot be used.
    """
    places: dict[Path, Place] = {}
    for queue in queues():
        try:
            queue.start_worker()
            places |= queue.places()
        except SlipwayError as error:
            warning = Text(plain(f"warning: {error}"), style="yellow")
            Console(stderr=True).print(warning, soft_wrap=True)
    return places


def read_usage(found: Sequence[RunStatus]) -> list[Usage]:
    """Returns what each run has used of its hosts."""
    return [live.read_usage(run.folder, is_alive=run.is_alive) for run in found]


def show(
    found: Sequence[RunStatus],
    runs: Path,
    places: Mapping[Path, Place],
    usage: Sequence[Usage] | None = None,
) -> None:
    """Prints the runs as a table, with the folders of runs that are not in `runs`.

    `places`: those of waiting runs in their queues. `usage`: the usage of each run, for columns
    of their own.
    """
    console = table_console()
    if not found:
        console.print(f"no run in {runs}, and none that was started elsewhere", highlight=False)
        return
    elsewhere = any(not _is_in(run, runs) for run in found)
    table = Table(box=None, pad_edge=False)
    for title in (*TITLES, *(COST_TITLES if usage else ())):
        right = title in RIGHT
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    if places:
        table.add_column("queue", no_wrap=True)
    if elsewhere:
        table.add_column("folder", overflow="fold")
    for number, run in enumerate(found):
        more = _cost_cells(usage[number]) if usage else []
        more += [Text(str(places.get(run.folder, "")))] if places else []
        more += [_folder(run, runs)] if elsewhere else []
        table.add_row(*_cells(run), *more)
    console.print(table)
    if usage:
        console.print(Text(_total(found, usage)), soft_wrap=True)
    for run in found:
        if run.left:
            console.print(
                Text(plain(f"{run.name} has left {run.left}"), style="yellow"), soft_wrap=True
            )


def _cells(run: RunStatus) -> list[Text]:
    age = format_seconds(max(0.0, time.time() - run.changed_at))
    style = STATE_STYLES.get(run.state, "cyan" if run.is_alive else "")
    return [
        Text(run.name),
        Text(plain(run.displayed_state), style=style),
        Text(str(run.attempt or "")),
        Text(run.position),
        Text("" if run.loss is None else f"{run.loss:.4f}"),
        Text(plain(run.cluster)),
        Text(f"{age} ago"),
    ]


def _cost_cells(used: Usage) -> list[Text]:
    return [Text(f"{used.chip_hours:,.2f}"), Text(format_dollars(used))]


def format_dollars(used: Usage) -> str:
    """Formats a cost; "> $3.20" when a part of it is not known, "" when nothing of it is."""
    if used.cost is not None:
        return f"${used.cost:,.2f}" if used.chip_hours else ""
    return f"> ${used.dollars:,.2f}" if used.dollars else ""


def _total(found: Sequence[RunStatus], usage: Sequence[Usage]) -> str:
    """Returns the sum over the runs on real hosts: simulated chips cost nothing."""
    real = [used for run, used in zip(found, usage, strict=True) if not run.is_simulated]
    total = sum(real, Usage())
    text = f"total: {total.chip_hours:,.2f} chip-hours"
    text += f", {cost}" if (cost := format_dollars(total)) else ""
    left_out = len(found) - len(real)
    return text + (f", without {pluralize(left_out, 'simulated run')}" if left_out else "")


def _folder(run: RunStatus, runs: Path) -> Text:
    return Text("" if _is_in(run, runs) else str(run.folder))


def _is_in(run: RunStatus, runs: Path) -> bool:
    return run.folder.parent.resolve() == runs.resolve()
