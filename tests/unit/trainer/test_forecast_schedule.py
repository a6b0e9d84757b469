"""The time of a scheduled program: what the core does, and what it waits for."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.analysis.forecast.schedule import follow
from trainer.analysis.forecast.timeline import CORE, Cost
from trainer.analysis.hlo import Instruction, Program
from trainer.contract.protocol.reports import StepSchedule

COST = re.compile(r"cost=(\w+):([\d.]+)")
LINKS = "links"
BODY, CONDITION, BRANCHES = "body", "condition", ("left", "right")


def cost_of(_: str, one: Instruction) -> Cost | None:
    """Reads `cost=RESOURCE:SECONDS`, an attribute of these tests' programs."""
    found = COST.search(one.attributes)
    return Cost(float(found[2]), f"part of {found[1]}", (found[1],)) if found else None


def work(number: int, seconds: float, resource: str = CORE) -> str:
    return f"  %w.{number} = f32[8]{{0}} fusion(%p), cost={resource}:{seconds}"


def start(number: int, seconds: float, resource: str = LINKS) -> str:
    return f"  %s.{number} = f32[8]{{0}} all-gather-start(%p), cost={resource}:{seconds}"


def done(number: int, operand: str = "") -> str:
    return f"  %d.{number} = f32[8]{{0}} all-gather-done(%{operand or f's.{number}'})"


def program(lines: list[str], more: str = "") -> Program:
    parameter = "  %p = f32[8]{0} parameter(0)"
    return Program("\n".join([more, "ENTRY %main (p: f32[8]) -> f32[8] {", parameter, *lines, "}"]))


def followed(*lines: str, more: str = "") -> StepSchedule:
    return follow(program(list(lines), more), cost_of)


def computation(name: str, *lines: str) -> str:
    return "\n".join([f"%{name} (p: f32[8]) -> f32[8] {{", *lines, "}", ""])


def loop(trips: int) -> str:
    known = f'backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
    return f"  %loop = f32[8]{{0}} while(%p), condition=%{CONDITION}, body=%{BODY}, {known}"


def test_work_of_the_core_adds_up() -> None:
    found = followed(work(1, 2), work(2, 3))
    assert (found.device_s, found.parts) == (5, {"part of core": 5})


def test_loop_for_uneven_loads_of_experts_costs_nothing() -> None:
    body = computation(BODY, "  %p = f32[8]{0} parameter(0)", work(1, 2))
    scope = 'metadata={op_name="jit(step)/mlp/overflow/while"}'
    line = f"  %loop = f32[8]{{0}} while(%p), condition=%{CONDITION}, body=%{BODY}, {scope}"
    assert followed(line, more=body).device_s == 0


def test_transfer_under_longer_work_costs_nothing() -> None:
    found = followed(start(1, 2), work(1, 3), done(1))
    assert (found.device_s, found.parts) == (3, {"part of core": 3})
    assert found.busy == {CORE: 3, LINKS: 2}


def test_transfer_under_shorter_work_costs_the_rest() -> None:
    found = followed(start(1, 5), work(1, 3), done(1))
    assert (found.device_s, found.parts) == (5, {"part of core": 3, "part of links": 2})


def test_transfer_that_the_core_runs_is_exposed() -> None:
    found = followed(work(1, 5, LINKS), work(2, 3))
    assert found.parts == {"part of links": 5, "part of core": 3}


def test_transfers_over_the_same_links_take_turns() -> None:
    same = followed(start(1, 2), start(2, 2), work(1, 3), done(1), done(2))
    other = followed(start(1, 2), start(2, 2, "others"), work(1, 3), done(1), done(2))
    assert (same.device_s, other.device_s) == (4, 3)


def test_end_is_found_behind_updates_and_elements() -> None:
    between = [
        "  %u = f32[8]{0} async-update(%s.1)",
        "  %e = f32[8]{0} get-tuple-element(%u), index=0",
    ]
    assert followed(start(1, 4), *between, done(1, "e")).device_s == 4


def test_end_of_nothing_costs_nothing() -> None:
    assert followed(work(1, 1), done(1, "p")).device_s == 1


def test_longest_branch_counts() -> None:
    more = computation("left", work(1, 2)) + computation("right", work(2, 7))
    one = "  %c = f32[8]{0} conditional(%p, %p, %p), branch_computations={%left, %right}"
    found = followed(one, work(3, 1), more=more)
    assert (found.device_s, found.parts) == (8, {"part of core": 8})


def test_loop_that_never_runs_costs_nothing() -> None:
    assert followed(loop(0), more=computation(BODY, work(1, 2))).device_s == 0


def test_loop_of_an_unknown_number_is_an_error() -> None:
    unknown = f"  %loop = f32[8]{{0}} while(%p), condition=%{CONDITION}, body=%{BODY}"
    condition = "  ROOT %r = pred[] custom-call(%p)"
    more = computation(BODY, work(1, 2)) + computation(CONDITION, condition)
    with pytest.raises(ValueError, match="not one that counts up"):
        followed(unknown, more=more)


seconds = st.integers(0, 20)
resources = st.sampled_from([LINKS, "others"])


@st.composite
def schedules(draw: st.DrawFn) -> list[str]:
    """Returns the lines of a schedule in which each start has one end, somewhere after it."""
    lines: list[str] = []
    open_starts: list[int] = []
    for number in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["work", "start", "done"]))
        if kind == "work":
            lines.append(work(number, draw(seconds)))
        elif kind == "start":
            lines.append(start(number, draw(seconds), draw(resources)))
            open_starts.append(number)
        elif open_starts:
            place = draw(st.integers(0, len(open_starts) - 1))
            lines.append(done(open_starts.pop(place)))
    return [*lines, *map(done, open_starts)]


@given(schedules())
def test_parts_add_up_to_the_step(lines: list[str]) -> None:
    found = followed(*lines)
    assert sum(found.parts.values()) == pytest.approx(found.device_s)


@given(schedules())
def test_step_is_between_its_busiest_resource_and_all_in_turn(lines: list[str]) -> None:
    found = followed(*lines)
    longest, total = max(found.busy.values(), default=0), sum(found.busy.values())
    assert longest <= found.device_s <= total


@given(schedules(), st.integers(1, 6))
def test_loop_takes_as_long_as_its_iterations_in_a_row(lines: list[str], trips: int) -> None:
    rolled = followed(loop(trips), more=computation(BODY, *lines))
    unrolled = [
        re.sub(r"%([wsd])\.(\d+)", rf"%\1.{trip}\g<2>0", line)
        for trip in range(1, trips + 1)
        for line in lines
    ]
    flat = followed(*unrolled)
    assert rolled.device_s == pytest.approx(flat.device_s)
    assert rolled.parts == pytest.approx(flat.parts)
    assert rolled.busy == pytest.approx(flat.busy)


@given(schedules(), st.integers(0, 20))
def test_more_work_under_a_transfer_never_costs_more_than_itself(
    lines: list[str], more: int
) -> None:
    longer = followed(*lines[:1], work(99, more), *lines[1:])
    assert followed(*lines).device_s <= longer.device_s <= followed(*lines).device_s + more
