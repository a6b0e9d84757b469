"""The share of a run's wall time that went into steps that counted, and where the rest went.

Every moment of a run belongs to exactly one part, so that the parts add up to the wall time. What
lies between the end of one command and a later `launch resume` is no time of the run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, NamedTuple

from launcher.core.formatting import format_seconds
from launcher.runs.timeline import Moment, Timeline, as_time


class Part(StrEnum):
    """Where a run's time goes."""

    PROVISIONING = "provisioning"
    """Getting hosts."""
    START = "start"
    """Agents, checks, imports, the rendezvous: all of an attempt before training, phases aside."""
    DATA = "data"
    COMPILE = "compile"
    RESTORE = "restore"
    SAVE = "save"
    """What steps had to wait for; most of a save goes on beside them."""
    COMMIT = "commit"
    """Waiting for a save to be written: the last one, or one that the next save comes after."""
    EVALUATE = "evaluate"
    SAMPLE = "sample"
    DATA_WAIT = "data_wait"
    """The time by which steps that waited for batches exceed the quickest one of their block."""
    STEPS = "steps"
    """Steps that counted: no later attempt did them again."""
    LOST = "lost"
    """Steps that were done again, and what had begun and was cut off when an attempt failed."""
    WAITING = "waiting"
    """Backing off after a failure, or waiting for hosts to come back."""
    PROGRAM = "program"
    """A program that sends neither phases nor steps: what it did is not known."""
    OTHER = "other"
    """Ending an attempt, phases of a program's own."""


PHASES = frozenset(
    [Part.DATA, Part.COMPILE, Part.RESTORE, Part.SAVE, Part.COMMIT, Part.EVALUATE, Part.SAMPLE]
)  # fmt: skip
OUTSIDE_PHASES = {
    "provisioning": Part.PROVISIONING,
    "starting": Part.START,
    "backing_off": Part.WAITING,
    "waiting_for_hosts": Part.WAITING,
}
ENDS = ("finished", "failed", "stopped", "interrupted")
IN_ORDER = ("finished", "stopped", "resized")
SHOWN_FROM_S = 0.05
FOLDED_STEPS = 1000
"""So many steps, and a later save, make a block: a run has millions of steps, and an attempt begins
where one was saved. Without saves, ten times as many do."""


@dataclass(frozen=True)
class Goodput:
    """Where a run's time went, in seconds."""

    seconds: Mapping[Part, float]
    """Of every part, also where it is 0."""

    @property
    def wall_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def share(self) -> float | None:
        """Of steps that counted in the wall time; None where the program tells no steps."""
        known = self.wall_s and not self.seconds[Part.PROGRAM]
        return self.seconds[Part.STEPS] / self.wall_s if known else None

    def rows(self) -> list[tuple[str, float, float]]:
        """For a table: name, seconds, share of the wall time; parts that took no time left out."""
        return [
            (part.replace("_", " "), seconds, seconds / self.wall_s)
            for part, seconds in self.seconds.items()
            if seconds >= SHOWN_FROM_S
        ]

    def as_json(self) -> dict[str, Any]:
        parts_s = {str(part): seconds for part, seconds in self.seconds.items()}
        return {"goodput": self.share, "wall_s": self.wall_s, "parts_s": parts_s}

    def __str__(self) -> str:
        """ "goodput 93.1 % (steps 5:12 of 5:35; start 9.0 s, compile 8.0 s, lost 3.0 s)"."""
        main = Part.PROGRAM if self.seconds[Part.PROGRAM] else Part.STEPS
        share = "not known" if self.share is None else f"{100 * self.share:.1f} %"
        rest = [f"{name} {format_seconds(s)}" for name, s, _ in self.rows() if name != main]
        whole = f"{main} {format_seconds(self.seconds[main])} of {format_seconds(self.wall_s)}"
        return f"goodput {share} ({'; '.join(filter(None, [whole, ', '.join(rest)]))})"


def goodput(events: Iterable[Mapping[str, Any]], now: float | None = None) -> Goodput:
    """Where the time of a run went, by the lines of its events.jsonl.

    `now`, in seconds since the epoch, is given for a run that is alive: its time goes on to there,
    and the step under way is taken to count. Without it the run ended with its last event.
    """
    account, timeline = Account(), Timeline()
    for event in events:
        account.take(timeline.add(event))
    account.take(timeline.rest())
    account.close(now)
    return account.goodput()


@dataclass
class Phase:
    """A phase under way."""

    name: str
    seconds: float = 0.0
    """Without the phases inside; of `train`, since the last step."""


class Step(NamedTuple):
    number: int
    seconds: float
    data_wait_s: float


class Block(NamedTuple):
    """Steps in a row of one attempt."""

    first: int
    last: int
    seconds: float
    data_wait_s: float

    def before(self, number: float) -> float:
        """The share of its steps with a lower number."""
        return min(1.0, max(0.0, (number - self.first) / (self.last - self.first + 1)))


@dataclass
class Steps:
    """The steps of one attempt: blocks that end where a checkpoint was saved, and the newest."""

    blocks: list[Block] = field(default_factory=list)
    newest: list[Step] = field(default_factory=list)

    @property
    def first(self) -> float:
        """The lowest number."""
        numbers = [block.first for block in self.blocks] + [step.number for step in self.newest]
        return min(numbers, default=inf)

    def fold(self, enough: int) -> None:
        """Make a block of the newest, where there are enough of them."""
        if len(self.newest) >= enough:
            self.blocks.append(_block(self.newest))
            self.newest = []

    def split(self, done_again_from: float) -> tuple[list[Block], float]:
        """What counts, and the seconds of steps that were done again."""
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
    """Takes a run's moments, and books what lies between them."""

    booked: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(Part, 0.0))
    steps: dict[int, Steps] = field(default_factory=dict)
    """The steps of each attempt, by its number."""
    time: float | None = None
    state: str = "running"
    attempt: int = 0
    phases: list[Phase] = field(default_factory=list)
    """The innermost last."""
    has_phases: bool = False
    has_trained: bool = False

    def take(self, moments: Iterable[Moment]) -> None:
        """What lies before each of these moments is booked by what was known until then."""
        for moment in moments:
            self._take(moment)

    def _take(self, moment: Moment) -> None:
        event = moment.event
        if event.get("event") == "opened":
            self.time = moment.time  # what lies before is no time of the run
        self._spend(moment.time)
        self._enter(event.get("attempt"))
        match event:
            case {"event": "opened"}:
                self._change_state("opened", in_order=False)
            case {"event": "state", "state": str(state)} if state != self.state:
                self._change_state(state, in_order=state in ("starting", "running", *IN_ORDER))
            case {"event": "attempt_ended"}:
                self._change_state("attempt_ended", in_order=event.get("kind") in IN_ORDER)
            case {"event": "phase", "name": str(name), "edge": "begin"}:
                self._begin_phase(name)
            case {"event": "phase", "name": str(name), "edge": "end"}:
                self._end_phase(name)
            case {"event": "step", "step": int(step)}:
                self._end_step(step, as_time(event.get("data_wait_s")) or 0.0)

    def close(self, now: float | None) -> None:
        """The end of what is known, or the present of a run that is alive."""
        if now is None:
            self._cut_off()
            return
        self._spend(now)
        self._end_phases(Part.STEPS)

    def goodput(self) -> Goodput:
        """Steps count unless a later attempt began at or before them."""
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
        """Book the time up to `until`; a run that has ended takes none."""
        seconds = max(0.0, until - (until if self.time is None else self.time))
        self.time = max(until, self.time or 0.0)
        if self.state in ENDS:
            return
        if self.phases:
            self.phases[-1].seconds += seconds
        else:
            self.booked[self._part_outside_phases()] += seconds

    def _part_outside_phases(self) -> Part:
        if self.state == "running" and not self.has_trained:
            return Part.PROGRAM
        return OUTSIDE_PHASES.get(self.state, Part.OTHER)

    def _enter(self, attempt: object) -> None:
        """A new attempt; the one before has ended, even if nobody was left to say so."""
        if isinstance(attempt, int) and attempt > self.attempt:
            self._cut_off()
            self.attempt = attempt

    def _change_state(self, state: str, *, in_order: bool) -> None:
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
        """With those inside, whose end was not heard of."""
        if not any(phase.name == name for phase in self.phases):
            return
        self.has_trained |= name == "train"
        while self._close_innermost(Part.OTHER) != name:
            pass

    def _end_step(self, number: int, data_wait_s: float) -> None:
        """Without a phase `train`, a program is in it from its first step on."""
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
        """All of them in order; `of_train` is what the time since the last step was."""
        while self.phases:
            self._close_innermost(of_train)
        self.has_trained = False

    def _cut_off(self) -> None:
        """What was under way came to nothing."""
        self.booked[Part.LOST] += sum(phase.seconds for phase in self.phases)
        self.phases, self.has_trained = [], False

    def _close_innermost(self, of_train: Part) -> str:
        phase = self.phases.pop()
        part = of_train if phase.name == "train" else Part.OTHER
        self.booked[Part(phase.name) if phase.name in PHASES else part] += phase.seconds
        return phase.name


def _block(steps: list[Step]) -> Block:
    """Sums up one step or more."""
    numbers, seconds = [step.number for step in steps], sum(step.seconds for step in steps)
    return Block(min(numbers), max(numbers), seconds, min(seconds, _data_wait_s(steps)))


def _data_wait_s(steps: list[Step]) -> float:
    """Of steps in a row, at least 0.

    A batch is waited for while the step before is under way, or, in a program with a simpler loop,
    in its own step. As long as the devices are busy anyway nothing is lost by that: only what is
    beyond the quickest step counts.
    """
    quickest_s = min((step.seconds for step in steps if step.seconds), default=0.0)
    total_s = room_s = 0.0
    for step in steps:
        own_s = max(0.0, step.seconds - quickest_s)
        stall_s = min(step.data_wait_s, room_s + own_s)
        total_s += stall_s
        room_s = min(room_s + own_s - stall_s, own_s)
    return total_s
