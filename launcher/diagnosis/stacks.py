"""Groups the processes of a run by what their main threads do. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from launcher.core.formatting import pluralize
from launcher.health.stacks import StackFrame, main_frames
from trainer.contract.protocol.process_names import file_stem

STATE = re.compile(r"\[py-spy: process \d+, state (?P<state>.+)\]")
"""The line before the stacks of a process that did not print them itself."""
NOT_READ = "no stack could be read"
MOST_NAMED = 8


@dataclass(frozen=True)
class StackGroup:
    """Processes whose main threads have equal stacks."""

    processes: list[int]
    frames: list[StackFrame]
    """Frames of the main thread, innermost first; empty when no stack could be read."""
    phases: list[str]
    """Phases that these processes were last heard to be in."""
    state: str
    """State of the process in the kernel, such as "T (stopped)"; "" when it answered itself."""
    text: str
    """All stacks of the first of them."""

    @property
    def place(self) -> str:
        """Where they are: the innermost frames of the program, and the call that waits."""
        if not self.frames:
            return NOT_READ
        own = next((frame for frame in self.frames if frame.of_interest), self.frames[0])
        inner = self.frames[0]
        return str(own) if inner is own else f"{own}, waiting in {inner}"


def group_stacks(texts: Mapping[int, str], phases: Mapping[int, str]) -> list[StackGroup]:
    """Returns the groups of processes, the largest first.

    `texts`: the stacks of each process; `phases`: the last known phase of each.
    """
    members: dict[tuple[object, ...], list[int]] = {}
    for process, text in sorted(texts.items()):
        key = (tuple(main_frames(text)), _state(text))
        members.setdefault(key, []).append(process)
    groups = [_group(processes, texts, phases) for processes in members.values()]
    return sorted(groups, key=lambda group: (-len(group.processes), group.processes))


def title(group: StackGroup, total: int, processes_per_host: int = 1) -> str:
    """Returns e.g. "1 of 4 processes (host-0002), train: at train.py:31 in next_batch"."""
    names = [file_stem(process, processes_per_host) for process in group.processes]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    phases = f", {' or '.join(group.phases)}" if group.phases else ""
    state = f", {group.state}" if group.state else ""
    count = f"{len(names)} of {pluralize(total, 'process')}"
    at = "at " if group.frames else ""
    return f"{count} ({', '.join(names[:MOST_NAMED])}{more}){phases}{state}: {at}{group.place}"


def _group(processes: list[int], texts: Mapping[int, str], phases: Mapping[int, str]) -> StackGroup:
    text = texts[processes[0]]
    known = dict.fromkeys(phases[process] for process in processes if process in phases)
    return StackGroup(processes, main_frames(text), [*known], _state(text), text)


def _state(text: str) -> str:
    found = STATE.match(text)
    return found["state"] if found else ""
