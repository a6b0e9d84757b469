"""`launch list`: all runs, newest first."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.core.formatting import format_seconds
from launcher.core.printable import plain
from launcher.core.results import RunState
from launcher.runs.status import RunStatus

PIPE_WIDTH = 1000
STYLES = {RunState.FAILED: "red", RunState.LOST: "red", RunState.FINISHED: "green"}


def show(found: Sequence[RunStatus], runs: Path) -> None:
    """Prints the runs as a table, with the folders of runs that are not in `runs`."""
    console = _console()
    if not found:
        console.print(f"no run in {runs}, and none that was started elsewhere", highlight=False)
        return
    elsewhere = any(not _is_in(run, runs) for run in found)
    table = Table(box=None, pad_edge=False)
    for title in ("name", "state", "attempt", "step", "loss", "cluster", "changed"):
        right = title in ("attempt", "step", "loss", "changed")
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    if elsewhere:
        table.add_column("folder", overflow="fold")
    for run in found:
        table.add_row(*_cells(run), *([_folder(run, runs)] if elsewhere else []))
    console.print(table)
    for run in found:
        if run.left:
            console.print(
                Text(plain(f"{run.name} has left {run.left}"), style="yellow"), soft_wrap=True
            )


def as_json(found: Sequence[RunStatus]) -> str:
    """Returns a JSON list with one object per run."""
    return json.dumps([run.as_json() for run in found], indent=2)


def _console() -> Console:
    """Returns a console as wide as the terminal or, in a pipe, wide enough for any folder."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def _cells(run: RunStatus) -> list[Text]:
    age = format_seconds(max(0.0, time.time() - run.changed_at))
    style = STYLES.get(run.state, "cyan" if run.is_alive else "")
    return [
        Text(run.name),
        Text(plain(run.displayed_state), style=style),
        Text(str(run.attempt or "")),
        Text(run.position),
        Text("" if run.loss is None else f"{run.loss:.4f}"),
        Text(plain(run.cluster)),
        Text(f"{age} ago"),
    ]


def _folder(run: RunStatus, runs: Path) -> Text:
    return Text("" if _is_in(run, runs) else str(run.folder))


def _is_in(run: RunStatus, runs: Path) -> bool:
    return run.folder.parent.resolve() == runs.resolve()
