"""`launch stacks`: what the processes of a live run do."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.commands.live_run import ask_run
from launcher.commands.status import read_world
from launcher.core.printable import plain
from launcher.diagnosis.stacks import StackGroup, group_stacks, title
from launcher.health.stacks import StackFrame
from launcher.requests.messages import ProcessStacks, StacksRequest
from launcher.runs import live
from launcher.runs.status import read_status

MOST_FRAMES = 10


@dataclass(frozen=True)
class Stacks:
    """The stacks of all processes of a run."""

    run: str
    processes: int
    processes_per_host: int
    groups: list[StackGroup]

    def result(self) -> "StacksResult":
        """Returns the stacks for a command's JSON output."""
        groups = [_result(group) for group in self.groups]
        return StacksResult(run=self.run, processes=self.processes, groups=groups)


@dataclass(frozen=True, kw_only=True)
class StackGroupResult:
    """Processes whose main threads have equal stacks."""

    processes: Sequence[int]
    """Numbers of the processes, from 0."""
    phases: Sequence[str]
    """Phases that these processes were last heard to be in."""
    state: str | None
    """State of the process in the kernel, such as "T (stopped)"; None when it answered itself."""
    place: str
    """Where they are: the innermost frame of the program, and the call that waits."""
    frames: Sequence[StackFrame]
    """Frames of the main thread, innermost first; empty when no stack could be read."""
    text: str
    """All stacks of the first of them, as text."""


@dataclass(frozen=True, kw_only=True)
class StacksResult:
    """The stacks of all processes of a run."""

    run: str
    """Name of the run."""
    processes: int
    """Number of all processes."""
    groups: Sequence[StackGroupResult]
    """The largest group first."""


def collect(folder: Path) -> Stacks:
    """Asks a live run for the stacks of all its processes. Raises what `ask_run` raises."""
    answers = ask_run(folder, StacksRequest())
    texts = {a.process: a.text for a in answers if isinstance(a, ProcessStacks)}
    world = read_world(read_status(folder))
    groups = group_stacks(texts, live.read(folder).phases)
    return Stacks(folder.name, len(texts), world.processes_per_host if world else 1, groups)


def show(found: Stacks, *, full: bool) -> None:
    """Prints each group of processes with their main thread, or with all threads of one."""
    console = Console()
    for group in found.groups:
        heading = title(group, found.processes, found.processes_per_host)
        console.print(Text(plain(heading), style="bold"), soft_wrap=True)
        lines = group.text.splitlines() if full else _frames(group)
        for line in lines or group.text.splitlines():
            console.print(Text(plain(f"    {line}")), soft_wrap=True)


def _result(group: StackGroup) -> StackGroupResult:
    return StackGroupResult(
        processes=group.processes,
        phases=group.phases,
        state=group.state or None,
        place=group.place,
        frames=group.frames,
        text=group.text,
    )


def _frames(group: StackGroup) -> list[str]:
    """Returns the frames of the main thread, innermost first; the middle of many is left out."""
    lines = [str(frame) for frame in group.frames]
    left_out = len(lines) - MOST_FRAMES
    if left_out <= 1:
        return lines
    half = MOST_FRAMES // 2
    return [*lines[:half], f"... {left_out} more frames ...", *lines[-half:]]
