"""The turns of launches in benchmarks: all process trees but one are stopped."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.alternation import mean_ratio, running, step_times, stopped, with_interval
from tests.support.assert_no_leftovers import Traces
from tests.support.processes import wait_until

TREE = "setsid sh -c 'while :; do sleep 0.01; done' & sleep 1000"
"""A process that leaves its session, and that starts others all the time."""


@pytest.fixture
def tree() -> Iterator[Traces]:
    with Traces() as traces:
        traces.started.append(subprocess.Popen(["sh", "-c", TREE], env=traces.environment))
        wait_until(lambda: len(traces.processes()) >= 4)
        yield traces


def are_stopped(traces: Traces) -> bool:
    """Returns whether every process of a tree is stopped, or waits for such a child: vfork(2)."""
    stats = [Path(f"/proc/{process}/stat").read_text() for process in traces.processes()]
    return {stat.rpartition(")")[2].split()[0] for stat in stats} <= {"T", "D"}


def test_trees_stop_take_turns_and_continue(tree: Traces) -> None:
    with stopped([tree]):
        assert are_stopped(tree)
        before = set(tree.processes())
        with running(tree):
            wait_until(lambda: set(tree.processes()) != before)
        assert are_stopped(tree)
        after = set(tree.processes())
    wait_until(lambda: set(tree.processes()) != after)


def test_trees_continue_after_an_error(tree: Traces) -> None:
    with pytest.raises(KeyboardInterrupt), stopped([tree]):
        before = set(tree.processes())
        raise KeyboardInterrupt
    wait_until(lambda: set(tree.processes()) != before)


def test_steps_that_overlap_the_edge_of_a_turn_do_not_count() -> None:
    ends = {1: 0.0, 2: 1.0, 3: 2.5, 4: 9.0, 6: 10.0}
    events = [{"event": "step", "step": step, "time": end} for step, end in ends.items()]
    assert step_times(events, [(0.0, 3.0), (0.5, 3.0), (3.0, 11.0)]) == [[1.0, 1.5], [1.5], []]


def test_interval_of_a_ratio_contains_it_and_ignores_the_pace_of_a_round() -> None:
    rounds = [([1.1 * pace] * 3, [pace] * 3) for pace in (1.0, 2.0, 50.0)]
    assert with_interval(rounds, mean_ratio) == "1.100 (1.100 to 1.100)"
    rounds = [([1.0 + number], [1.0]) for number in range(9)]
    found, low, high = map(float, re.findall(r"[\d.]+", with_interval(rounds, mean_ratio)))
    assert low < found == 5.0 < high
