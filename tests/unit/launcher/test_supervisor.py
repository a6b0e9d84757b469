"""What follows when an attempt ends: budgets, back-off, giving up."""

from dataclasses import replace

import pytest

from launcher.controller.supervisor import (
    LONG_S,
    LOSSES_IN_VAIN,
    KeepRunning,
    RunEnded,
    StartAttempt,
    Supervisor,
)
from launcher.core.results import AttemptResult
from launcher.core.states import EndReason, RunState
from tests.support.supervisors import (
    CRASH,
    FIXED,
    LOSS,
    RESIZED,
    STOP,
    crash,
    end,
    over,
    restart,
    supervisor,
)


def test_the_first_attempt_starts_on_all_hosts() -> None:
    assert Supervisor(FIXED).decide(4, 0.0) == StartAttempt(4)


def test_while_an_attempt_runs_there_is_nothing_to_decide() -> None:
    assert supervisor().decide(0, 0.0) == KeepRunning()


def test_a_finished_attempt_ends_the_run() -> None:
    assert end(supervisor(), AttemptResult(EndReason.FINISHED, "")) == RunEnded(
        RunState.FINISHED, ""
    )


def test_a_stop_by_the_user_ends_the_run() -> None:
    assert over(end(supervisor(), AttemptResult(EndReason.STOPPED, "asked"))).state == "stopped"


@pytest.mark.parametrize("ending", [CRASH, LOSS, AttemptResult(EndReason.BUDGET, "stopped")])
def test_no_attempt_follows_once_the_budget_is_used_up(ending: AttemptResult) -> None:
    run = supervisor()
    run.budget_spent("12 h of 12 h")
    assert end(run, ending) == RunEnded(RunState.OVER_BUDGET, "12 h of 12 h")


def test_a_budget_that_is_used_up_between_attempts_ends_the_wait() -> None:
    run = supervisor()
    end(run, LOSS)
    run.budget_spent("12 h of 12 h")
    assert run.decide(0, 1e9) == RunEnded(RunState.OVER_BUDGET, "12 h of 12 h")


def test_an_attempt_that_finishes_beyond_its_budget_has_finished() -> None:
    run = supervisor()
    run.budget_spent("12 h of 12 h")
    assert over(end(run, AttemptResult(EndReason.FINISHED, ""))).state is RunState.FINISHED


def test_a_final_failure_is_not_tried_again() -> None:
    assert (
        over(end(supervisor(), AttemptResult(EndReason.FINAL, "not finite"))).reason == "not finite"
    )


def test_the_first_failure_is_tried_again_at_once() -> None:
    assert end(supervisor(), CRASH) == StartAttempt(4)


def test_back_off_grows_between_failures() -> None:
    run = supervisor(replace(FIXED, failures=20))
    waits_s = [restart(run, crash(step)) for step in range(11)]
    assert waits_s == [0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_failures_beyond_the_budget_end_the_run() -> None:
    run = supervisor()
    for step in (1, 2, 3):
        restart(run, crash(step))
    reason = over(end(run, crash(4))).reason
    assert reason == "host-0001 exited with code 1 (retries.failures: 3 is spent)"


def test_without_retries_the_first_failure_is_the_end() -> None:
    run = supervisor(replace(FIXED, failures=0))
    assert over(end(run, CRASH)).reason == "host-0001 exited with code 1"


def test_a_new_checkpoint_renews_the_budget_and_the_back_off() -> None:
    run = supervisor(replace(FIXED, failures=1))
    for step in range(1, 20):
        run.committed(step)
        assert restart(run, crash(step)) == 0.0


def test_a_checkpoint_of_step_1_is_progress() -> None:
    run = supervisor(replace(FIXED, failures=1))
    restart(run, crash(0))
    run.committed(1)
    restart(run, crash(1))


def test_after_a_checkpoint_the_back_off_grows_from_the_beginning() -> None:
    run = supervisor()
    restart(run, crash(1))
    restart(run, crash(2))
    run.committed(3)
    assert [restart(run, crash(step)) for step in (4, 5, 6)] == [0.0, 2.0, 4.0]


def test_repeated_checkpoint_renews_nothing() -> None:
    run = supervisor(replace(FIXED, failures=1))
    run.committed(5)
    restart(run, crash(6))
    run.committed(5)
    assert over(end(run, crash(8)))


def test_three_equal_failures_in_a_row_are_deterministic() -> None:
    run = supervisor(replace(FIXED, failures=100))
    restart(run, CRASH)
    restart(run, CRASH)
    reason = over(end(run, CRASH)).reason
    assert "3 times in a row, each time after step 7: deterministic" in reason


@pytest.mark.parametrize("other", [crash(6), replace(CRASH, how="was killed by SIGKILL")])
def test_another_failure_between_equal_ones_is_not_deterministic(other: AttemptResult) -> None:
    run = supervisor(replace(FIXED, failures=100))
    for ending in (CRASH, CRASH, other, CRASH, CRASH):
        restart(run, ending)


def test_a_checkpoint_between_equal_failures_is_not_deterministic() -> None:
    run = supervisor()
    for step in range(1, 10):
        run.committed(step)
        restart(run, replace(CRASH, step=None))


def test_losses_between_equal_failures_do_not_hide_that_they_repeat() -> None:
    run = supervisor()
    for ending in (CRASH, LOSS, CRASH, LOSS):
        restart(run, ending)
    assert "3 times in a row" in over(end(run, CRASH)).reason


def test_a_lost_host_is_not_charged_to_the_failures() -> None:
    run = supervisor(replace(FIXED, failures=0))
    for _ in range(20):
        restart(run, LOSS)
    assert (run.failures, run.losses) == (0, 20)


def test_losses_without_progress_end_the_run() -> None:
    run = supervisor()
    for _ in range(LOSSES_IN_VAIN):
        restart(run, LOSS)
    reason = over(end(run, LOSS)).reason
    assert "21 attempts without a new checkpoint or step between them" in reason
    assert "checkpoint.every_steps" in reason


def test_attempts_that_only_make_room_for_more_hosts_end_the_run() -> None:
    run = supervisor()
    for _ in range(LOSSES_IN_VAIN):
        restart(run, RESIZED)
    assert "21 attempts without a new checkpoint" in over(end(run, RESIZED)).reason


@pytest.mark.parametrize("ending", [LOSS, STOP])
def test_a_new_checkpoint_between_losses_renews_their_limit(ending: AttemptResult) -> None:
    run = supervisor(replace(FIXED, failures=0))
    for step in range(3 * LOSSES_IN_VAIN):
        run.committed(step + 1)
        restart(run, ending)


@pytest.mark.parametrize("ending", [LOSS, STOP])
def test_a_further_step_between_losses_renews_their_limit(ending: AttemptResult) -> None:
    run = supervisor(replace(FIXED, failures=0))
    for step in range(3 * LOSSES_IN_VAIN):
        restart(run, replace(ending, step=step + 1))


@pytest.mark.parametrize("ending", [LOSS, STOP])
def test_a_long_attempt_of_a_program_without_steps_is_progress(ending: AttemptResult) -> None:
    run = supervisor(replace(FIXED, failures=0))
    for _ in range(3 * LOSSES_IN_VAIN):
        restart(run, replace(ending, step=None, ran_s=LONG_S))


def test_a_step_that_an_earlier_attempt_completed_is_no_progress() -> None:
    run = supervisor()
    restart(run, replace(LOSS, step=9))
    for _ in range(LOSSES_IN_VAIN - 1):
        restart(run, LOSS)
    assert over(end(run, LOSS))


def test_a_stop_that_was_not_asked_for_is_a_preemption_once() -> None:
    run = supervisor(replace(FIXED, failures=0))
    restart(run, STOP)
    assert (run.failures, run.losses) == (0, 1)
    assert over(end(run, STOP)).reason == (
        "host-0001 exited with code 75 (2 times without a new checkpoint or step between them; "
        "retries.failures: 0 is spent; a program that fails must end with another code than 75, "
        "and not by SIGTERM)"
    )


def test_a_stop_that_was_not_asked_for_and_repeats_is_deterministic() -> None:
    run = supervisor(replace(FIXED, failures=100))
    restart(run, STOP)
    restart(run, STOP)
    reason = over(end(run, STOP)).reason
    assert "3 times in a row, each time after step 7: deterministic; a program that" in reason


def test_stops_that_were_not_asked_for_use_the_whole_budget_of_failures() -> None:
    run = supervisor(replace(FIXED, failures=1))
    by_signal = replace(STOP, how="SIGTERM")
    restart(run, STOP)
    restart(run, by_signal)
    reason = over(end(run, STOP)).reason
    assert "3 times without a new checkpoint or step" in reason


def test_stops_that_a_notice_explains_are_no_failures() -> None:
    run = supervisor(replace(FIXED, failures=0))
    for _ in range(5):
        restart(run, replace(STOP, how=""))
    assert (run.failures, run.losses) == (0, 5)


def test_losses_beyond_their_own_budget_end_the_run() -> None:
    run = supervisor(replace(FIXED, preemptions=1))
    restart(run, LOSS)
    assert "retries.preemptions: 1 is spent" in over(end(run, LOSS)).reason


def test_crash_and_hang_count_as_failure_loss_and_preemption_as_loss() -> None:
    assert [kind for kind in EndReason if kind.is_failure] == [EndReason.CRASH, EndReason.HANG]
    assert [kind for kind in EndReason if kind.is_loss] == [EndReason.LOST, EndReason.PREEMPTED]
