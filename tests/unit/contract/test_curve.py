"""One clean curve from metrics.jsonl, whatever happened to the run."""

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.records.metrics_file import curve


def line(step: int, attempt: int, **fields: object) -> str:
    return json.dumps({"step": step, "loss": 1.0 * attempt, "attempt": attempt, **fields})


def evaluation(step: int, attempt: int) -> str:
    return json.dumps({"step": step, "eval_loss": 1.0 * attempt, "attempt": attempt})


def found(lines: list[str]) -> list[tuple[int, int, str]]:
    return [(x["step"], x["attempt"], "loss" if "loss" in x else "eval_loss") for x in curve(lines)]


def test_steps_that_were_done_again_are_of_the_later_attempt() -> None:
    lines = [line(s, 1) for s in range(1, 8)] + [line(s, 2) for s in range(5, 10)]
    assert [x["attempt"] for x in curve(lines)] == [1] * 4 + [2] * 5


def test_what_a_later_attempt_passed_by_is_gone_too() -> None:
    """Attempt 2 began at step 3 and ended at once: steps 4 and on of attempt 1 never were."""
    assert found([line(s, 1) for s in range(1, 8)] + [line(3, 2)]) == [
        (1, 1, "loss"), (2, 1, "loss"), (3, 2, "loss"),
    ]  # fmt: skip


def test_evaluations_go_with_their_steps() -> None:
    lines = [line(1, 1), line(2, 1), evaluation(2, 1), line(3, 1), evaluation(3, 1), line(3, 2)]
    assert found(lines) == [
        (1, 1, "loss"), (2, 1, "loss"), (2, 1, "eval_loss"), (3, 2, "loss"),
    ]  # fmt: skip


def test_an_evaluation_done_again_leaves_its_step_alone() -> None:
    lines = [line(2, 1), evaluation(2, 1), evaluation(2, 2), line(3, 2)]
    assert found(lines) == [(2, 1, "loss"), (2, 2, "eval_loss"), (3, 2, "loss")]


def test_torn_lines_and_what_is_none_are_skipped() -> None:
    lines = [
        line(1, 1),
        line(2, 1)[:20],
        "",
        "7",
        "[]",
        '{"step": true}',
        '{"loss": 1}',
        line(3, 1),
    ]
    assert [x["step"] for x in curve(lines)] == [1, 3]


def test_an_attempt_that_wakes_up_late_changes_nothing() -> None:
    lines = [line(1, 1), line(2, 2), line(2, 1), line(3, 2), line(3, 1)]
    assert found(lines) == [(1, 1, "loss"), (2, 2, "loss"), (3, 2, "loss")]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=5))
def test_crashes_and_resumes_leave_every_step_once(attempts: list[tuple[int, int]]) -> None:
    """Each attempt starts after a step that an earlier one did, and does some more."""
    lines, done = [], 0
    for number, (back, more) in enumerate(attempts, 1):
        first = max(done - back, 0) + 1
        done = first + more - 1
        lines += [line(step, number) for step in range(first, done + 1)]
    assert [x["step"] for x in curve(lines)] == list(range(1, done + 1))
    shuffled = random.Random(0).sample(lines, len(lines))
    assert curve(shuffled) == curve(lines)
