"""The share of a run's wall time in steps that counted, and the parts of the rest.

Every moment of a run belongs to exactly one part, so that the parts add up to the wall time. The
time between the end of one command and a later `launch resume` does not count.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import NamedTuple

from launcher.core.events import AttemptEndedEvent, CommandStartedEvent, StateEvent
from launcher.core.formatting import format_seconds
from launcher.core.states import RunState
from launcher.runs.timeline import Moment, PhaseEdge, StepDone, Timeline
from trainer.contract.protocol.events import Event


class Part(StrEnum):
    """A part of a run's wall time."""

    PROVISIONING = "provisioning"
    """Acquiring hosts."""
    START = "start"
    """All of an attempt before training except phases: agents, checks, imports, rendezvous."""
    DATA = "data"
    COMPILE = "compile"
    RESTORE = "restore"
    SAVE = "save"
    """Time in which a save blocks the steps; most of a save runs beside them."""
    COMMIT = "commit"
    """Waiting until a save is written: the last one, or one that precedes the next save."""
    EVALUATE = "evaluate"
    SAMPLE = "sample"
    DATA_WAIT = "data_wait"
    """Time by which steps that waited for batches exceed the quickest step of their block."""
    STEPS = "steps"
    """Steps that counted: no later attempt repeated them."""
    LOST = "lost"
    """Repeated steps, and unfinished work that was cut off when an attempt failed."""
    WAITING = "waiting"
    """Backing off after a failure, or waiting for hosts or for other runs."""
    PROGRAM = "program"
    """A program that sends neither phases nor steps: its activity is unknown."""
    OTHER = "other"
    """Ending an attempt, and phases that only a user's program has."""


PHASES = frozenset(
    [Part.DATA, Part.COMPILE, Part.RESTORE, Part.SAVE, Part.COMMIT, Part.EVALUATE, Part.SAMPLE]
)  # fmt: skip
OUTSIDE_PHASES = {
    RunState.PROVISIONING: Part.PROVISIONING,
    RunState.STARTING: Part.START,
    RunState.BACKING_OFF: Part.WAITING,
    RunState.WAITING_FOR_HOSTS: Part.WAITING,
    RunState.WAITING_FOR_RUNS: Part.WAITING,
}
IN_ORDER = (
    RunState.STARTING, RunState.RUNNING, RunState.FINISHED, RunState.STOPPED, RunState.OVER_BUDGET,
)  # fmt: skip
"""States that cut off no phase in progress."""
SHOWN_FROM_S = 0.05
FOLDED_STEPS = 1000
"""Minimum number of steps that a save folds into a block. A run has millions of steps, and an
attempt begins at a saved one. Without saves, ten times as many steps make a block."""


@dataclass(frozen=True)
class Goodput:
    """The wall time of a run, divided into parts."""

    seconds: Mapping[Part, float]
    """Seconds of every part, including those of 0."""

    @property
    def wall_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def share(self) -> float | None:
        """Fraction of the wall time in steps that counted; None if the program reports no steps."""
        known = self.wall_s and not self.seconds[Part.PROGRAM]
        return self.seconds[Part.STEPS] / self.wall_s if known else None

    def rows(self) -> list[tuple[str, float, float]]:
        """Returns table rows (name, seconds, share of the wall time) of parts that took time."""
        return [
            (part.replace("_", " "), seconds, seconds / self.wall_s)
            for part, seconds in self.seconds.items()
            if seconds >= SHOWN_FROM_S
        ]

    def result(self) -> "GoodputResult":
        """Returns the goodput for a command's JSON output."""
        return GoodputResult(goodput=self.share, wall_s=self.wall_s, parts_s=self.seconds)

    def __str__(self) -> str:
        """Returns e.g. "goodput 93.1 % (steps 5:12 of 5:35; start 20.0 s, lost 3.0 s)"."""
        main = Part.PROGRAM if self.seconds[Part.PROGRAM] else Part.STEPS
        share = "not known" if self.share is None else f"{100 * self.share:.1f} %"
        rest = [f"{name} {format_seconds(s)}" for name, s, _ in self.rows() if name != main]
        whole = f"{main} {format_seconds(self.seconds[main])} of {format_seconds(self.wall_s)}"
        return f"goodput {share} ({'; '.join(filter(None, [whole, ', '.join(rest)]))})"


@dataclass(frozen=True, kw_only=True)
class GoodputResult:
    """The wall time of a run, divided into parts."""

    goodput: float | None
    """Fraction of the wall time in steps that counted; None if the program reports no steps."""
    wall_s: float
    """Wall time of all attempts, in seconds: the sum of the parts."""
    parts_s: Mapping[Part, float]
    """Seconds of each part; docs/explanation/supervision.md describes the parts."""


def goodput(events: Iterable[Event], now: float | None = None) -> Goodput:
    """Returns the goodput of a run, from its events.

    `now`, in seconds since the epoch, is given for a run that is alive: its time extends to `now`,
    and the step in progress counts. Without it, the run ended with its last event.
    """
    account, timeline = Account(), Timeline()
    for event in events:
        account.take(timeline.add(event))
    account.take(timeline.rest())
    account.close(now)
    return account.goodput()


@dataclass
class Phase:
    """A phase in progress."""

    name: str
    seconds: float = 0.0
    """Seconds without inner phases; for `train`, since the last step."""


class Step(NamedTuple):
    number: int
    seconds: float
    data_wait_s: float


class Block(NamedTuple):
    """Consecutive steps of one attempt."""

    first: int
    last: int
    seconds: float
    data_wait_s: float

    def before(self, number: float) -> float:
        """Returns the share of the block's steps with a lower number."""
        return min(1.0, max(0.0, (number - self.first) / (self.last - self.first + 1)))


@dataclass
class Steps:
    """The steps of one attempt: blocks that end at a saved checkpoint, and the newest steps."""

    blocks: list[Block] = field(default_factory=list)
    newest: list[Step] = field(default_factory=list)

    @property
    def first(self) -> float:
        """Lowest step number; infinity without steps."""
        numbers = [block.first for block in self.blocks] + [step.number for step in self.newest]
        return min(numbers, default=inf)

    def fold(self, enough: int) -> None:
        """Folds the newest steps into a block when there are at least `enough`."""
        if len(self.newest) >= enough:
            self.blocks.append(_block(self.newest))
            self.newest = []

    def split(self, done_again_from: float) -> tuple[list[Block], float]:
        """Returns the blocks that count, and the seconds of steps that were repeated."""
        kept = [step for step in self.newest if step.number < done_again_from]
        lost_s = sum(s.seconds for s in self.newest if s.number >= done_again_from)
        blocks = [_block(kept)] if kept else []
        for block in self.blocks:
            share = block.before(done_again_from)
            lost_s += (1 - share) * block.seconds
            blocks.append(
                Block(block.first, block.last, share * block.seconds, share * block.data_wait_s)
            )
        return blocks, lost_s


@dataclass
class Account:
    """An account that assigns the time between a run's moments to parts."""

    booked: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(Part, 0.0))
    steps: dict[int, Steps] = field(default_factory=dict)
    """Steps of each attempt, by its number."""
    time: float | None = None
    state: RunState | None = RunState.RUNNING
    """None from the end of an attempt until the next state."""
    attempt: int = 0
    phases: list[Phase] = field(default_factory=list)
    """Phases in progress, the innermost last."""
    has_phases: bool = False
    has_trained: bool = False

    def take(self, moments: Iterable[Moment]) -> None:
        """Books the time before each of these moments, by the state known until then."""
        for moment in moments:
            self._take(moment)

    def _take(self, moment: Moment) -> None:
        event = moment.event
        if isinstance(event, CommandStartedEvent):
            self.time = moment.time  # the time before does not count
        self._spend(moment.time)
        if event is None:
            return
        self._enter(event.attempt)
        match event:
            case StepDone():
                self._end_step(event.number, event.data_wait_s)
            case PhaseEdge():
                (self._begin_phase if event.begins else self._end_phase)(event.name)
            case StateEvent():
                if event.state is not self.state:
                    self._change_state(event.state, in_order=event.state in IN_ORDER)
            case AttemptEndedEvent():
                self._change_state(None, in_order=event.end_reason.is_orderly)
            case CommandStartedEvent():
                self._change_state(None, in_order=False)

    def close(self, now: float | None) -> None:
        """Ends the account at the last event, or at `now` for a run that is alive."""
        if now is None:
            self._cut_off()
            return
        self._spend(now)
        self._end_phases(Part.STEPS)

    def goodput(self) -> Goodput:
        """Returns the goodput. Steps count unless a later attempt began at or before them."""
        seconds = dict(self.booked)
        if self.has_phases:
            seconds[Part.START] += seconds[Part.PROGRAM]
            seconds[Part.PROGRAM] = 0.0
        done_again_from = inf
        for _, steps in sorted(self.steps.items(), reverse=True):
            blocks, lost_s = steps.split(done_again_from)
            seconds[Part.STEPS] += sum(block.seconds - block.data_wait_s for block in blocks)
            seconds[Part.DATA_WAIT] += sum(block.data_wait_s for block in blocks)
            seconds[Part.LOST] += lost_s
            done_again_from = min(done_again_from, steps.first)
        return Goodput(seconds)

    def _spend(self, until: float) -> None:
        """Books the time up to `until`; a run that has ended takes none."""
        seconds = max(0.0, until - (until if self.time is None else self.time))
        self.time = max(until, self.time or 0.0)
        if self.state and self.state.is_terminal:
            return
        if self.phases:
            self.phases[-1].seconds += seconds
        else:
            self.booked[self._part_outside_phases()] += seconds

    def _part_outside_phases(self) -> Part:
        if self.state is RunState.RUNNING and not self.has_trained:
            return Part.PROGRAM
        return OUTSIDE_PHASES.get(self.state, Part.OTHER) if self.state else Part.OTHER

    def _enter(self, attempt: int | None) -> None:
        """Begins a new attempt. The previous one has ended, even if no event reported that."""
        if attempt is not None and attempt > self.attempt:
            self._cut_off()
            self.attempt = attempt

    def _change_state(self, state: RunState | None, *, in_order: bool) -> None:
        if in_order:
            self._end_phases(Part.OTHER)
        else:
            self._cut_off()
        self.state = state

    def _begin_phase(self, name: str) -> None:
        self.has_phases = True
        self.phases.append(Phase(name))
        if name == Part.SAVE and self.attempt in self.steps:
            self.steps[self.attempt].fold(FOLDED_STEPS)

    def _end_phase(self, name: str) -> None:
        """Ends a phase, and the phases inside it whose end was not reported."""
        if not any(phase.name == name for phase in self.phases):
            return
        self.has_trained |= name == "train"
        while self._close_innermost(Part.OTHER) != name:
            pass

    def _end_step(self, number: int, data_wait_s: float) -> None:
        """Ends a step. Without a phase `train`, a program is in it from its first step on."""
        if not any(phase.name == "train" for phase in self.phases):
            self.phases.insert(0, Phase("train"))
        while self.phases[-1].name != "train":
            self._close_innermost(Part.OTHER)
        train = self.phases[-1]
        step = Step(number, train.seconds, data_wait_s)
        steps = self.steps.setdefault(self.attempt, Steps())
        steps.newest.append(step)
        steps.fold(10 * FOLDED_STEPS)
        train.seconds, self.has_phases = 0.0, True

    def _end_phases(self, of_train: Part) -> None:
        """Ends all phases in order; `of_train` is the part for the time since the last step."""
        while self.phases:
            self._close_innermost(of_train)
        self.has_trained = False

    def _cut_off(self) -> None:
        """Books the phases in progress as lost."""
        self.booked[Part.LOST] += sum(phase.seconds for phase in self.phases)
        self.phases, self.has_trained = [], False

    def _close_innermost(self, of_train: Part) -> str:
        phase = self.phases.pop()
        self.booked[part_of(phase, of_train)] += phase.seconds
        return phase.name


def part_of(phase: Phase, of_train: Part) -> Part:
    """Returns the part of a phase that ends in order; `of_train` is that of the phase `train`."""
    if phase.name in PHASES:
        return Part(phase.name)
    return of_train if phase.name == "train" else Part.OTHER


def _block(steps: list[Step]) -> Block:
    """Combines one or more steps into a block."""
    numbers, seconds = [step.number for step in steps], sum(step.seconds for step in steps)
    return Block(min(numbers), max(numbers), seconds, min(seconds, _data_wait_s(steps)))


def _data_wait_s(steps: list[Step]) -> float:
    """Returns the seconds that consecutive steps lost to waiting for data, at least 0.

    The wait for a batch is part of the previous step or, in a program with a simpler loop, of the
    batch's own step. While the devices are busy anyway, the wait costs nothing: only time beyond
    the quickest step counts.
    """
    quickest_s = min((step.seconds for step in steps if step.seconds), default=0.0)
    total_s = room_s = 0.0
    for step in steps:
        own_s = max(0.0, step.seconds - quickest_s)
        stall_s = min(step.data_wait_s, room_s + own_s)
        total_s += stall_s
        room_s = min(room_s + own_s - stall_s, own_s)
    return total_s
