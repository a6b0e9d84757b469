"""When each part of a run's wall time was: the account of the goodput, with its spans."""

from dataclasses import dataclass, field
from math import inf

from launcher.runs.goodput import Account, Part, Phase, part_of


@dataclass
class Span:
    """A span of time in one part. Spans of `steps` include their data wait."""

    begin: float
    """Seconds since the epoch by the driver's clock."""
    end: float
    attempt: int
    part: Part
    step: int | None = None
    """The step that took this time."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def continues(self, earlier: "Span") -> bool:
        """Returns whether this span goes on where an earlier one of the same part ends."""
        same = (self.attempt, self.part) == (earlier.attempt, earlier.part)
        return same and self.begin == earlier.end


@dataclass
class SpanAccount(Account):
    """An account that also records when it booked what."""

    recorded: list[Span] = field(default_factory=list)
    pending: list[tuple[Phase, Span]] = field(default_factory=list)
    """Spans of the phases in progress, whose part is not known yet."""

    def spans(self) -> list[Span]:
        """Returns the spans in order, the longest possible. Call it once, after `close`."""
        found: list[Span] = []
        again = self._done_again_from()
        for span in self.recorded:
            span.part = self._final_part(span, again)
            if found and span.continues(found[-1]):
                found[-1].end = span.end
            else:
                found.append(span)
        return found

    def _done_again_from(self) -> dict[int, float]:
        """Returns attempt -> the first step that a later attempt repeated."""
        firsts = {attempt: steps.first for attempt, steps in self.steps.items()}
        return {
            attempt: min((first for later, first in firsts.items() if later > attempt), default=inf)
            for attempt in firsts
        }

    def _final_part(self, span: Span, again: dict[int, float]) -> Part:
        if span.step is not None and span.step >= again[span.attempt]:
            return Part.LOST
        return Part.START if span.part is Part.PROGRAM and self.has_phases else span.part

    def _spend(self, until: float) -> None:
        begin, is_over = self.time, self.state is not None and self.state.is_terminal
        super()._spend(until)
        if begin is None or self.time is None or self.time <= begin or is_over:
            return
        part = Part.OTHER if self.phases else self._part_outside_phases()
        span = Span(begin, self.time, self.attempt, part)
        self.recorded.append(span)
        if self.phases:
            self.pending.append((self.phases[-1], span))

    def _end_step(self, number: int, data_wait_s: float) -> None:
        super()._end_step(number, data_wait_s)
        self._assign(self.phases[-1], Part.STEPS, number)

    def _close_innermost(self, of_train: Part) -> str:
        self._assign(self.phases[-1], part_of(self.phases[-1], of_train))
        return super()._close_innermost(of_train)

    def _cut_off(self) -> None:
        for phase in self.phases:
            self._assign(phase, Part.LOST)
        super()._cut_off()

    def _assign(self, phase: Phase, part: Part, step: int | None = None) -> None:
        """Sets the part of a phase's spans."""
        for owner, span in self.pending:
            if owner is phase:
                span.part, span.step = part, step
        self.pending = [(owner, span) for owner, span in self.pending if owner is not phase]
