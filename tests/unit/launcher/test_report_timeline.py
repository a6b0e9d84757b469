"""The timeline of a report: one clock for the parts, the attempts and the faults."""

import pytest

from launcher.report.timeline import Clock, Timeline, timeline
from launcher.runs.goodput import Part, goodput
from tests.support.run_builders import HOUR_S, RunEvents
from tests.support.run_records import record_of

COLUMNS = 500


def timeline_of(run: RunEvents) -> Timeline:
    record = record_of(run)
    return timeline(record, Clock(record.spans), COLUMNS)


@pytest.fixture
def crashed() -> RunEvents:
    """A run that crashes after 10 steps, is resumed an hour later, and repeats 5 of them."""
    run = RunEvents().training().steps(1, 10).ended("crash").state("failed").after(HOUR_S)
    run.launcher("command_started").next_attempt().training().steps(6, 12)
    return run.finished()


def test_areas_of_the_parts_are_their_shares_of_the_goodput(crashed: RunEvents) -> None:
    found = goodput(crashed.events)
    areas: dict[Part, float] = {}
    for block in timeline_of(crashed).blocks:
        areas[block.part] = areas.get(block.part, 0.0) + block.width * block.height / 100
    shares = {part: 100 * s / found.wall_s for part, s in found.seconds.items() if s}
    assert areas == {part: pytest.approx(share, abs=0.2) for part, share in shares.items()}


def test_blocks_fill_the_width(crashed: RunEvents) -> None:
    blocks = timeline_of(crashed).blocks
    assert sum(block.width * block.height / 100 for block in blocks) == pytest.approx(100, abs=0.2)
    assert max(block.left + block.width for block in blocks) == pytest.approx(100)


def test_timeline_of_many_short_phases_is_bounded() -> None:
    run = RunEvents().training()
    for step in range(1, 20_001):
        run.steps(step, step, 0.1).phase("save", 0.1)
    assert len(timeline_of(run.finished()).blocks) < 4 * COLUMNS


def test_pause_between_commands_takes_no_width_and_is_marked(crashed: RunEvents) -> None:
    found = timeline_of(crashed)
    assert found.ticks[-1].label != "1:00:00"
    (pause,) = [mark for mark in found.marks if mark.kind == "pause"]
    assert pause.title == "resumed after a pause of 1:00:00"


def test_fault_is_at_the_end_of_its_attempt(crashed: RunEvents) -> None:
    found = timeline_of(crashed)
    (fault,) = [mark for mark in found.marks if mark.kind == "fault"]
    first = found.attempts[0]
    assert fault.left == pytest.approx(first.left + first.width, abs=0.1)
    assert fault.title.endswith("crash: ")


def test_attempts_follow_each_other(crashed: RunEvents) -> None:
    first, second = timeline_of(crashed).attempts
    assert (first.number, second.number) == (1, 2)
    assert second.left == pytest.approx(first.left + first.width)
    assert second.left + second.width == pytest.approx(100)


def test_orderly_stop_is_no_fault() -> None:
    run = RunEvents().training().steps(1, 3).end("train").ended("stopped").after(1)
    assert [mark.kind for mark in timeline_of(run.state("stopped")).marks] == ["stop"]


@pytest.mark.parametrize(
    ("wall_s", "labels"),
    [
        (4.0, ["0 s", "1 s", "2 s", "3 s"]),
        (300.0, ["0 s", "1:00", "2:00", "3:00", "4:00"]),
        (10 * 24 * HOUR_S, ["0 s", "48:00:00", "96:00:00", "144:00:00", "192:00:00"]),
    ],
)
def test_ticks_are_at_round_times(wall_s: float, labels: list[str]) -> None:
    run = RunEvents().state("provisioning").after(wall_s).state("finished")
    assert [tick.label for tick in timeline_of(run).ticks] == labels
