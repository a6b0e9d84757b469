"""The timeline of a run: its parts, attempts and faults, all on the clock of its wall time."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

from launcher.core.formatting import format_seconds
from launcher.core.states import EndReason
from launcher.runs.goodput import Part
from launcher.runs.run_record import RunRecord
from launcher.runs.spans import Span

WHOLE = 0.999
"""Share of a column from which one part fills it."""
MOST_TICKS = 6
LAST_TICK = 0.85
"""Share of the width up to which a tick's label has room on its right."""
SHORTEST_PAUSE_S = 1.0
"""Shorter times between two commands are not marked."""
TICKS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 4 * 3600, 6 * 3600, 12 * 3600
)  # fmt: skip
DAY_S = 86400


@dataclass(frozen=True)
class Block:
    """A rectangle of the timeline, in percent of its width and height."""

    part: Part
    left: float
    width: float
    top: float
    height: float
    title: str


@dataclass(frozen=True)
class AttemptBar:
    """An attempt, in percent of the timeline's width."""

    number: int
    left: float
    width: float
    title: str


@dataclass(frozen=True)
class Mark:
    """A moment on the timeline: a fault, or a pause between two commands."""

    left: float
    kind: str
    title: str


@dataclass(frozen=True)
class Tick:
    left: float
    label: str


@dataclass(frozen=True)
class Timeline:
    """The timeline of a run, ready to be drawn."""

    blocks: list[Block]
    attempts: list[AttemptBar]
    marks: list[Mark]
    ticks: list[Tick]


class Clock:
    """Converts times to seconds of the run's wall time, which leaves pauses out."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._begins = [span.begin for span in spans]
        self._before = [0.0, *accumulate(span.seconds for span in spans)]

    @property
    def wall_s(self) -> float:
        return self._before[-1]

    def seconds(self, time: float) -> float:
        """Returns the wall time up to a time; within a pause, that at its begin."""
        index = bisect_right(self._begins, time) - 1
        if index < 0:
            return 0.0
        span = self._spans[index]
        return self._before[index] + min(time, span.end) - span.begin

    def percent(self, time: float) -> float:
        return 100 * self.seconds(time) / (self.wall_s or 1.0)

    def label(self, time: float) -> str:
        """Returns a time on this clock as text."""
        return format_seconds(self.seconds(time))


def timeline(record: RunRecord, clock: Clock, columns: int) -> Timeline:
    """Returns the timeline of a run. Its parts are those of the goodput.

    A column shows the shares of the parts in its time.
    """
    shares = _shares(record.spans, clock.wall_s, columns)
    return Timeline(
        blocks=list(_blocks(shares, clock.wall_s)),
        attempts=list(_attempts(record, clock)),
        marks=[*_ends(record, clock), *_pauses(record.spans, clock)],
        ticks=_ticks(clock.wall_s),
    )


def _shares(spans: Sequence[Span], wall_s: float, count: int) -> list[dict[Part, float]]:
    """Returns the share of each part in the time of each column."""
    columns: list[dict[Part, float]] = [{} for _ in range(count)]
    width_s = wall_s / count
    begin = 0.0
    for span in spans:
        end = begin + span.seconds
        last = min(count - 1, int(end / width_s))
        for number in range(min(count - 1, int(begin / width_s)), last + 1):
            within_s = min(end, (number + 1) * width_s) - max(begin, number * width_s)
            if within_s > 0:
                column = columns[number]
                column[span.part] = column.get(span.part, 0.0) + within_s / width_s
        begin = end
    return columns


def _blocks(shares: Sequence[dict[Part, float]], wall_s: float) -> Iterator[Block]:
    """Yields one block for neighboring columns of a single part, and a stack for each other."""
    width, column_s = 100 / len(shares), wall_s / len(shares)
    for only, group in groupby(enumerate(shares), key=lambda item: _only(item[1])):
        numbers = [number for number, _ in group]
        stacks = [numbers] if only else [[number] for number in numbers]
        for stack in stacks:
            begin, end = stack[0], stack[-1] + 1
            times = f"{format_seconds(begin * column_s)} to {format_seconds(end * column_s)}"
            top = 0.0
            for part in [only] if only else sorted(shares[begin], key=list(Part).index):
                height = 100.0 if only else 100 * shares[begin][part]
                title = f"{part_name(part)}, {times}"
                yield Block(part, width * begin, width * (end - begin), top, height, title)
                top += height


def _only(column: dict[Part, float]) -> Part | None:
    """Returns the part that fills a column; None when there are several."""
    return next((part for part, share in column.items() if share >= WHOLE), None)


def part_name(part: Part) -> str:
    return part.replace("_", " ")


def _attempts(record: RunRecord, clock: Clock) -> Iterator[AttemptBar]:
    for number, group in groupby(record.spans, key=lambda span: span.attempt):
        spans = list(group)
        left = clock.percent(spans[0].begin)
        seconds = sum(span.seconds for span in spans)
        title = f"attempt {number}, {format_seconds(seconds)}"
        yield AttemptBar(number, left, 100 * seconds / clock.wall_s, title)


def _ends(record: RunRecord, clock: Clock) -> Iterator[Mark]:
    """Yields the ends of attempts that did not finish."""
    for end in record.ends:
        if end.time is not None and end.end_reason is not EndReason.FINISHED:
            kind = "stop" if end.end_reason.is_orderly else "fault"
            title = f"{clock.label(end.time)}: {end.end_reason}: {end.reason}"
            yield Mark(clock.percent(end.time), kind, title)


def _pauses(spans: Sequence[Span], clock: Clock) -> Iterator[Mark]:
    """Yields the times between the end of one command and a later `launch resume`."""
    for earlier, later in pairwise(spans):
        if later.begin - earlier.end >= SHORTEST_PAUSE_S:
            pause = format_seconds(later.begin - earlier.end)
            yield Mark(clock.percent(later.begin), "pause", f"resumed after a pause of {pause}")


def _ticks(wall_s: float) -> list[Tick]:
    """Returns at most MOST_TICKS times at round distances."""
    steps = (*TICKS_S, DAY_S * (1 + int(wall_s / DAY_S / MOST_TICKS)))
    step_s = next(step for step in steps if wall_s <= step * MOST_TICKS)
    times = range(0, int(LAST_TICK * wall_s) + 1, step_s)
    return [Tick(100 * at / wall_s, _tick_label(at)) for at in times]


def _tick_label(seconds: int) -> str:
    return f"{seconds} s" if seconds < 60 else format_seconds(seconds)
