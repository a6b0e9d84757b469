"""How long the phases of a run may take before they count as a hang."""

import pytest

from launcher.health.hangs import KEYS, Limits
from tests.support.watched_gang import LIMITS, Gang
from trainer.contract.config.job import Deadlines


@pytest.mark.parametrize(
    "phase", ["start", "data", "compile", "restore", "save", "commit", "evaluate"]
)
def test_long_phases_have_minutes_and_end(phase: str) -> None:
    gang = Gang()
    gang.begin(phase)
    limit_s = LIMITS.phase_s.get(phase, LIMITS.other_phases_s)
    assert limit_s >= 300
    assert gang.wait(limit_s - 1) is None
    hang = gang.wait(2)
    assert hang and {one.phase for one in hang.behind} == {phase}


def test_later_evaluations_are_measured_by_the_first_ones() -> None:
    gang = Gang()
    for number in range(3):
        gang.train(steps=5, after=5 * number)
        gang.begin("evaluate")
        assert gang.wait(60) is None
        gang.say(0, "eval")
        gang.say(1, "phase", name="evaluate", edge="end")
    gang.begin("evaluate")
    hang = gang.wait(1000)
    assert hang and hang.deadline_s == pytest.approx(LIMITS.factor * 60, rel=0.1)


def test_progress_in_a_phase_counts() -> None:
    gang = Gang()
    gang.begin("data")
    for done in range(10):
        gang.say(0, "progress", done=done, total=10, unit="bytes")
        gang.say(1, "progress", done=done, total=10, unit="bytes")
        assert gang.wait(500) is None


def test_a_last_save_of_hours_that_moves_is_no_hang() -> None:
    gang = Gang()
    gang.train(steps=40)
    gang.begin("commit")
    for written in range(1, 8):
        gang.say(1, "save_progress", step=40, written=written, total=10)
        assert gang.wait(1200) is None
    hang = gang.wait(200)
    assert str(hang) == (
        "all 2 hosts: no progress in commit after step 40 for 1300 s "
        "(limit 1300 s: deadlines.save_s of the job)"
    )


def test_a_save_in_the_background_is_no_progress_of_the_steps() -> None:
    gang = Gang()
    gang.train()
    for written in range(20):
        gang.say(0, "save_progress", step=5, written=written, total=20)
        if gang.wait(1):
            return
    raise AssertionError("not found")


@pytest.mark.parametrize(("phase", "key"), [*KEYS.items(), ("sample", "step_s")])
def test_the_key_that_a_hang_names_raises_its_limit(phase: str, key: str) -> None:
    gang = Gang(limits=Limits.of(Deadlines.model_validate({key: 5000.0})))
    gang.begin(phase)
    assert gang.wait(4999) is None
    assert f"deadlines.{key}" in str(gang.wait(200))


@pytest.mark.parametrize(("phase", "key"), [("train", "step_s"), ("evaluate", "evaluate_s")])
def test_a_limit_that_is_measured_is_never_shorter_than_the_key(phase: str, key: str) -> None:
    gang = Gang(limits=Limits.of(Deadlines.model_validate({key: 50.0})))
    gang.train(steps=5)
    for _ in range(4):
        gang.begin(phase)
        gang.step(6)
    gang.begin(phase)
    assert gang.wait(49) is None
    hang = gang.wait(1000)
    assert hang and hang.deadline_s == 50.0
