"""`launch why`: why a run ended, and what its wall time went into."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.core.formatting import format_seconds
from launcher.core.printable import plain
from launcher.diagnosis.advice import Explanation, explain
from launcher.diagnosis.parts import PartKind, TimePart, time_parts
from launcher.runs.cause import Cause, cause
from launcher.runs.folder import run_word
from launcher.runs.goodput import SHOWN_FROM_S, Part
from launcher.runs.run_record import RunRecord, read_record
from launcher.runs.status import RunResult, describe
from trainer.contract.protocol.process_names import process_name

CHARACTERS = 4000
"""Maximum length of an error, and of the last output of a host."""
SHOWN_HOSTS, SHOWN_LINES = 3, 20
"""Maximum number of hosts whose last output is printed, and of its lines."""


@dataclass(frozen=True)
class Why:
    """Why a run ended badly, and what its wall time went into."""

    record: RunRecord
    cause: Cause | None
    parts: list[tuple[TimePart, Explanation]]
    """The losses first, the largest of them first."""

    def result(self) -> "WhyResult":
        """Returns the diagnosis for a command's JSON output."""
        goodput = self.record.goodput
        return WhyResult(
            **vars(self.record.status.result()),
            wall_s=goodput.wall_s,
            goodput=goodput.share,
            cause=self.cause,
            parts=[_result(part, found, goodput.wall_s) for part, found in self.parts],
        )


@dataclass(frozen=True, kw_only=True)
class TimePartResult:
    """A part of the wall time of a run."""

    kind: PartKind
    """What the time went into; docs/how-to/diagnose.md describes the kinds."""
    is_loss: bool
    """Whether the time went into anything but the steps or the program."""
    seconds: float
    share: float
    """Fraction of the wall time."""
    text: str
    """What the time consists of; empty when the kind says all."""
    changes: Sequence[str]
    """What to change, the most useful first; empty for a part that is too short to act on."""
    goodput_parts_s: Mapping[Part, float]
    """Seconds of the parts of the goodput that it consists of."""


@dataclass(frozen=True, kw_only=True)
class WhyResult(RunResult):
    """A run, why it ended badly, and what its wall time went into."""

    wall_s: float
    """Wall time of all attempts, in seconds: the sum of the parts."""
    goodput: float | None
    """Fraction of the wall time in steps that counted; None if the program reports no steps."""
    cause: Cause | None
    """Why the run failed or was lost; None for any other run."""
    parts: Sequence[TimePartResult]
    """The losses first, the largest of them first."""


def read(folder: Path) -> Why:
    """Reads the diagnosis of a run from its folder. Raises what `read_record` raises."""
    record = read_record(folder)
    parts = [(part, explain(part, record)) for part in time_parts(record)]
    return Why(record, cause(record, CHARACTERS), parts)


def show(why: Why, console: Console | None = None) -> None:
    """Prints the diagnosis as text."""
    console = console or Console()
    record = why.record
    if why.cause:
        _show_cause(console, why.cause, record)
    else:
        console.print(Text(plain(describe(record.status)), style="bold"), soft_wrap=True)
    wall_s = record.goodput.wall_s
    if not why.parts:
        console.print("no time has been recorded yet", highlight=False)
        return
    title = "where its time goes" if record.status.is_alive else "where its time went"
    console.print(Text(f"{title}: {format_seconds(wall_s)}, {_goodput(record)}", style="bold"))
    shown = [(part, explanation) for part, explanation in why.parts if part.seconds >= SHOWN_FROM_S]
    for part, explanation in shown:
        _show_part(console, part.seconds, wall_s, explanation)


def _result(part: TimePart, found: Explanation, wall_s: float) -> TimePartResult:
    return TimePartResult(
        kind=part.kind,
        is_loss=part.kind.is_loss,
        seconds=part.seconds,
        share=part.seconds / wall_s,
        text=found.text,
        changes=found.changes,
        goodput_parts_s={name: s for name, s in part.of_parts.items() if s},
    )


def _show_cause(console: Console, found: Cause, record: RunRecord) -> None:
    console.print(Text(plain(found.text), style="bold red"), soft_wrap=True)
    for error in found.errors:
        console.print(Text(_last_lines(error)), soft_wrap=True)
    outputs = [output for output in found.outputs if output.text]
    for output in outputs[:SHOWN_HOSTS]:
        name = process_name(output.host, record.processes_per_host)
        console.print(Text(f"last output of {name}", style="bold"))
        console.print(Text(_last_lines(output.text), style="dim"), soft_wrap=True)
    if outputs:
        command = f"launch logs {run_word(record.folder)}"
        console.print(Text(f"all output: {command}"), soft_wrap=True)


def _last_lines(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines()[-SHOWN_LINES:])


def _show_part(console: Console, seconds: float, wall_s: float, found: Explanation) -> None:
    line = f"{format_seconds(seconds):>9} {100 * seconds / wall_s:5.1f} %  {found.title}"
    console.print(Text(plain(line + (f": {found.text}" if found.text else ""))), soft_wrap=True)
    for change in found.changes:
        console.print(Text(plain(f"{'':20}-> {change}"), style="cyan"), soft_wrap=True)


def _goodput(record: RunRecord) -> str:
    share = record.goodput.share
    return "goodput unknown" if share is None else f"goodput {100 * share:.1f} %"
