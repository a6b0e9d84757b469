"""`launch status`: the state of a run, its history, and the command to follow or continue it."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from launcher.core.files import read_object
from launcher.core.formatting import describe_hosts, pluralize
from launcher.core.printable import plain
from launcher.core.states import RunState
from launcher.queue.folder import Place, place_of
from launcher.runs import live, summary
from launcher.runs.folder import resume_command, run_word
from launcher.runs.goodput import Goodput, GoodputResult
from launcher.runs.history import History, HistoryEntry, LastCheckpoint, LastEvaluation
from launcher.runs.status import RunResult, RunStatus, read_status
from launcher.ui.console import STATE_STYLES
from trainer.contract.planning.plan import World
from trainer.contract.planning.save_interval import SaveInterval

SHOWN_ENTRIES = 20


@dataclass(frozen=True)
class Status:
    """Everything that is shown about one run."""

    run: RunStatus
    history: History
    goodput: Goodput
    left_out: int
    """Bytes at the start of events.jsonl that were skipped, because the file is too large."""
    place: Place | None
    """The run's place in its queue; None when it does not wait in one of Slipway's."""
    phases: dict[int, str]
    """Phase of each host of the last attempt, by process."""
    world: World | None
    """World of the last attempt's plan; None without a plan."""
    save_interval: SaveInterval | None
    """The interval of `checkpoint.every_minutes: auto`; None before it was chosen."""

    @property
    def hosts(self) -> str:
        """The hosts, with their phases while the run is alive: "2 hosts x 4 devices: 2 train"."""
        if not self.world:
            return ""
        text = describe_hosts(self.world)
        doing = Counter(self.phases.values()).most_common() if self.run.is_alive else []
        return text + (": " if doing else "") + ", ".join(f"{n} {phase}" for phase, n in doing)

    @property
    def is_followed(self) -> bool:
        """Whether the run is live, or will be without another command."""
        return self.run.is_alive or self.run.state is RunState.QUEUED

    @property
    def next_command(self) -> str:
        """The command that follows a live or queued run or resumes another one; "" if finished."""
        if self.is_followed:
            return f"launch attach {run_word(self.run.folder)}"
        return "" if self.run.state is RunState.FINISHED else resume_command(self.run.folder)

    def result(self) -> "StatusResult":
        """Returns the status for a command's JSON output."""
        return StatusResult(
            **vars(self.run.result(self.place)),
            world=self.world,
            hosts={str(process): phase for process, phase in sorted(self.phases.items())},
            evaluation=self.history.evaluation,
            checkpoint=self.history.checkpoint,
            checkpoint_interval=self.save_interval,
            goodput=self.goodput.result(),
            events_left_out_bytes=self.left_out,
            happened=self.history.entries,
            command=self.next_command or None,
        )


@dataclass(frozen=True, kw_only=True)
class StatusResult(RunResult):
    """A run, its current state and its history."""

    world: World | None
    """Hosts and devices of the last attempt's plan; None without a plan."""
    hosts: Mapping[str, str]
    """Phase of each host of the last attempt, by process."""
    evaluation: LastEvaluation | None
    """Its newest evaluation; None before the first one."""
    checkpoint: LastCheckpoint | None
    """The newest checkpoint that it could resume from."""
    checkpoint_interval: SaveInterval | None
    """The current interval of `checkpoint.every_minutes: auto`; None without `auto`."""
    goodput: GoodputResult
    events_left_out_bytes: int
    """Bytes at the start of events.jsonl that were skipped, because the file is too large."""
    happened: Sequence[HistoryEntry]
    """The history of the run, the oldest entry first."""
    command: str | None
    """The command that follows or resumes the run; None for a finished run."""


def read(folder: Path) -> Status:
    """Reads the status of a run from its folder."""
    run, found, hosts = read_status(folder), summary.read(folder), live.read(folder)
    return Status(
        run=run,
        history=found.history,
        goodput=found.goodput(time.time() if run.is_alive else None, hosts.heard),
        left_out=found.begin,
        place=place_of(folder),
        phases=hosts.phases,
        world=read_world(run),
        save_interval=found.saves.interval,
    )


def read_world(run: RunStatus) -> World | None:
    """Returns the world of the last attempt's plan; None when it is missing or damaged."""
    plan = run.folder / "plans" / f"{run.attempt or 1:04d}.json"
    try:
        return World.model_validate(read_object(plan).get("world"))
    except ValidationError:
        return None


def show(status: Status) -> None:
    """Prints the status as text."""
    console, run = Console(), status.run
    title = Text(run.name, style="bold").append("  ")
    title.append(plain(run.displayed_state), style=STATE_STYLES.get(run.state, "cyan"))
    title.append(f", attempt {run.attempt}" if run.attempt else "", style="not bold")
    console.print(title)
    for name, value in _facts(status).items():
        if value:
            console.print(Text(plain(f"  {name:12}{value}")), soft_wrap=True)
    for line in _history(status.history.entries):
        console.print(line, soft_wrap=True)
    if status.next_command:
        how = "follow it with" if status.is_followed else "continue with"
        console.print(Text(f"{how}: {status.next_command}"), soft_wrap=True)


def _facts(status: Status) -> dict[str, str]:
    run = status.run
    loss = "" if run.loss is None else f", loss {run.loss:.4f}"
    return {
        "reason": run.recorded.reason or "",
        "queue": str(status.place or ""),
        "left": run.left,
        "step": run.position + loss,
        "evaluation": str(status.history.evaluation or ""),
        "cluster": run.cluster,
        "hosts": status.hosts,
        "checkpoint": str(status.history.checkpoint or "none yet"),
        "saving": str(status.save_interval or ""),
        "goodput": str(status.goodput).removeprefix("goodput ") + _left_out(status),
        "folder": str(run.folder),
    }


def _left_out(status: Status) -> str:
    if not status.left_out:
        return ""
    return f"; without the first {status.left_out:,} bytes of events.jsonl, which has no summary"


def _history(entries: list[HistoryEntry]) -> list[Text]:
    """Returns the lines of the run's history, newest last."""
    left_out = len(entries) - SHOWN_ENTRIES
    lines = [Text("what happened", style="bold")] if entries else []
    if left_out > 0:
        lines.append(
            Text(f"  {pluralize(left_out, 'earlier event')}: in events.jsonl", style="dim")
        )
    for entry in entries[-SHOWN_ENTRIES:]:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
        attempt = f"attempt {entry.attempt}  " if entry.attempt else ""
        lines.append(Text(plain(f"  {when}  {attempt}{entry.text}")))
    return lines
