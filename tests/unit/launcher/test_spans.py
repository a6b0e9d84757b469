"""The spans of a run's wall time, and the account of the goodput that they must agree with."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.runs.goodput import Goodput, Part, goodput
from launcher.runs.spans import Span
from tests.support.any_events import ENDS, STATES, any_event
from tests.support.run_builders import BEGIN_S, HOUR_S, RunEvents, spans_of
from tests.support.run_folders import event_of

OF_LAUNCHER = ["command_started", "state", "attempt_ended"]


def sums(spans: list[Span]) -> dict[Part, float]:
    found: dict[Part, float] = {}
    for span in spans:
        found[span.part] = found.get(span.part, 0.0) + span.seconds
    return found


def with_data_wait_in_steps(found: Goodput) -> dict[Part, Any]:
    seconds = dict(found.seconds)
    seconds[Part.STEPS] += seconds.pop(Part.DATA_WAIT)
    return {part: pytest.approx(s, abs=1e-3) for part, s in seconds.items() if s > 1e-3}


@given(
    st.lists(any_event([*STATES, *ENDS], [*OF_LAUNCHER, "phase", "step"])),
    st.none() | st.floats(BEGIN_S, BEGIN_S + 2 * HOUR_S),
)
def test_spans_of_any_events_add_up_to_the_goodput(
    wires: list[dict[str, Any]], now: float | None
) -> None:
    events = [event_of(wire) for wire in wires]
    spans = spans_of(events, now)
    long = {part: s for part, s in sums(spans).items() if s > 1e-3}
    assert long == with_data_wait_in_steps(goodput(events, now))
    assert all(a.end <= b.begin + 1e-6 for a, b in pairwise(spans))


def test_repeated_steps_are_lost_at_the_time_when_they_ran() -> None:
    run = RunEvents().training().steps(1, 10).ended("crash")
    run.next_attempt().training().steps(6, 12).finished()
    spans = spans_of(run.events)
    lost = [span for span in spans if span.part is Part.LOST]
    assert [(span.attempt, round(span.seconds)) for span in lost] == [(1, 5)]
    counted = [round(span.seconds) for span in spans if span.part is Part.STEPS]
    assert counted == [5, 7]


def test_neighboring_steps_are_one_span() -> None:
    run = RunEvents().training().steps(1, 1000).finished()
    assert len([span for span in spans_of(run.events) if span.part is Part.STEPS]) == 1


def test_a_save_divides_the_steps() -> None:
    run = RunEvents().training().steps(1, 3).phase("save", 2).steps(4, 6).finished()
    parts = [span.part for span in spans_of(run.events)]
    at = parts.index(Part.SAVE)
    assert parts[at - 1 : at + 2] == [Part.STEPS, Part.SAVE, Part.STEPS]


def test_no_span_covers_the_time_between_two_commands() -> None:
    run = RunEvents().training().steps(1, 3).finished().after(HOUR_S)
    run.launcher("command_started").next_attempt().training().steps(4, 6).finished()
    spans = spans_of(run.events)
    gaps = [b.begin - a.end for a, b in pairwise(spans) if b.begin > a.end]
    assert gaps == [HOUR_S]
