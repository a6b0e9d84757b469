"""Whatever the events of a run are, its time is accounted for."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.runs.goodput import goodput
from tests.support.any_events import END_REASONS, ENDS, NAMES, STATES, any_event
from tests.support.run_builders import BEGIN_S, DAY_S, HOUR_S, RunEvents
from tests.support.run_folders import event_of

OF_ONE_COMMAND = ["state", "attempt_ended", "phase", "step"]


def is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1e11


@given(st.lists(any_event([*STATES, *ENDS], ["command_started", *OF_ONE_COMMAND])))
def test_no_events_make_a_part_negative_or_more_than_all(events: list[dict[str, Any]]) -> None:
    found = goodput(map(event_of, events))
    known = [e[name] for e in events for name in ("time", "received") if is_time(e.get(name))]
    longest_s = max(known) - min(known) if known else 0
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert found.wall_s <= longest_s * (1 + 1e-6) + 1e-6
    assert str(found)


@given(st.lists(any_event(STATES, OF_ONE_COMMAND)))
def test_of_one_command_every_moment_is_in_some_part(events: list[dict[str, Any]]) -> None:
    for event in events:
        event["received"] = event.get("received") if is_time(event.get("received")) else BEGIN_S
        event["time"] = event["received"] if event.get("event") in ("state", "attempt_ended") else 0
    arrived = [event["received"] for event in events]
    wall_s = max(arrived) - arrived[0] if arrived else 0
    assert goodput(map(event_of, events)).wall_s == pytest.approx(wall_s, rel=1e-6, abs=1e-6)


@st.composite
def stories(draw: st.DrawFn) -> tuple[RunEvents, float]:
    """A run of several commands with whatever in between, and its wall time."""
    story = RunEvents(clock_s=draw(st.sampled_from([0.0, HOUR_S, -HOUR_S])))
    seconds = st.floats(0, 100)
    wall_s = 0.0
    for command in range(draw(st.integers(1, 3))):
        if command:
            story.after(DAY_S).launcher("command_started")
        begin_s = story.state("provisioning").now
        for _ in range(draw(st.integers(1, 3))):
            for _ in range(draw(st.integers(0, 8))):
                story.after(draw(seconds))
                told = draw(st.sampled_from(["state", "begin", "end", "step", "heartbeat"]))
                match told:
                    case "state":
                        story.state(draw(st.sampled_from(STATES)))
                    case "begin" | "end":
                        story.host("phase", name=draw(st.sampled_from(NAMES)), edge=told)
                    case "step":
                        story.host("step", step=draw(st.integers(1, 9)), data_wait_s=draw(seconds))
                    case _:
                        story.host("heartbeat")
            story.after(draw(seconds)).ended(draw(st.sampled_from(END_REASONS))).next_attempt()
        wall_s += story.now - begin_s
        story.state(draw(st.sampled_from(ENDS)))
    return story, wall_s


@given(stories())
def test_parts_add_up_to_the_time_of_all_commands(told: tuple[RunEvents, float]) -> None:
    story, wall_s = told
    found = goodput(story.events)
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert found.wall_s == pytest.approx(wall_s, rel=1e-6, abs=1e-6)
