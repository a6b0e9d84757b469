"""What follows when an attempt ends: budgets, back-off, waiting for hosts, giving up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.controller.supervisor import (
    LONG_S,
    LOSSES_IN_VAIN,
    Decision,
    KeepRunning,
    Policy,
    RunEnded,
    StartAttempt,
    Supervisor,
    Wait,
)
from launcher.core.results import AttemptResult, EndReason

FIXED = Policy(failures=3, preemptions=None, sizes=[4], wait_for_hosts_s=100.0)
ELASTIC = replace(FIXED, sizes=[2, 4])
CRASH = AttemptResult(EndReason.CRASH, "host-0001 exited with code 1", "exited with code 1", 1, 7)
LOSS = AttemptResult(EndReason.LOST, "host-0001 was lost", "lost", 1, 7)
STOP = AttemptResult(
    EndReason.PREEMPTED, "host-0001 exited with code 75", "exited with code 75", 1, 7
)
RESIZED = AttemptResult(EndReason.RESIZED, "stopped to go on with more hosts")


def crash(step: int) -> AttemptResult:
    return replace(CRASH, step=step)


def supervisor(policy: Policy = FIXED) -> Supervisor:
    """With a first attempt that runs on all hosts."""
    started = Supervisor(policy)
    started.began(policy.sizes[-1])
    return started


def end(run: Supervisor, ending: AttemptResult, now_s: float = 0.0, alive: int = 4) -> Decision:
    run.ended(ending, now_s)
    return run.decide(alive, now_s)


def restart(run: Supervisor, ending: AttemptResult) -> float:
    """End the attempt and begin the next one as soon as that may be; the back-off in seconds."""
    decision = end(run, ending)
    back_off_s = decision.until_s if isinstance(decision, Wait) else 0.0
    assert run.decide(4, back_off_s) == StartAttempt(4)
    run.began(4)
    return back_off_s


def over(decision: Decision) -> RunEnded:
    assert isinstance(decision, RunEnded)
    return decision


def test_the_first_attempt_starts_on_all_hosts() -> None:
    assert Supervisor(FIXED).decide(4, 0.0) == StartAttempt(4)


def test_while_an_attempt_runs_there_is_nothing_to_decide() -> None:
    assert supervisor().decide(0, 0.0) == KeepRunning()


def test_a_finished_attempt_ends_the_run() -> None:
    assert end(supervisor(), AttemptResult(EndReason.FINISHED, "")) == RunEnded("finished", "")


def test_a_stop_by_the_user_ends_the_run() -> None:
    assert over(end(supervisor(), AttemptResult(EndReason.STOPPED, "asked"))).state == "stopped"


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


def test_a_missing_host_is_waited_for() -> None:
    run = supervisor()
    assert end(run, LOSS, now_s=50.0, alive=3) == Wait(
        "waiting_for_hosts", 150.0, "3 of 4 hosts are alive"
    )
    assert run.decide(4, 60.0) == StartAttempt(4)


def test_a_host_that_never_comes_ends_a_run_that_needs_it() -> None:
    run = supervisor()
    end(run, LOSS, now_s=50.0, alive=3)
    reason = over(run.decide(3, 150.0)).reason
    assert reason == (
        "3 of 4 hosts are alive, at least 4 are needed, and none has come in 100 s. "
        "Before that: host-0001 was lost"
    )


def test_elastic_run_with_too_few_hosts_names_minimum() -> None:
    run = supervisor(ELASTIC)
    end(run, LOSS, alive=1)
    assert "1 of 4 hosts are alive, at least 2 are needed" in over(run.decide(1, 100.0)).reason


def test_an_elastic_run_goes_on_with_the_most_that_fits() -> None:
    run = supervisor(ELASTIC)
    end(run, LOSS, alive=3)
    assert run.decide(3, 100.0) == StartAttempt(2)


def test_a_smaller_run_that_fails_again_does_not_wait_again() -> None:
    run = supervisor(ELASTIC)
    end(run, LOSS, alive=3)
    run.decide(3, 100.0)
    run.began(2)
    run.ended(CRASH, 200.0)
    assert run.decide(3, 202.0) == StartAttempt(2)


def test_a_smaller_run_that_loses_one_more_waits_again() -> None:
    run = supervisor(ELASTIC)
    end(run, LOSS, alive=3)
    run.decide(3, 100.0)
    run.began(2)
    run.ended(LOSS, 200.0)
    assert run.decide(2, 202.0) == Wait("waiting_for_hosts", 302.0, "2 of 4 hosts are alive")


def test_it_grows_when_hosts_come_back() -> None:
    run = supervisor(ELASTIC)
    end(run, LOSS, alive=3)
    run.decide(3, 100.0)
    run.began(2)
    assert not run.wants_to_grow(3)
    assert run.wants_to_grow(4)
    assert end(run, AttemptResult(EndReason.RESIZED, "")) == StartAttempt(4)
    assert (run.failures, run.losses) == (0, 1)


KINDS = st.sampled_from([*EndReason, EndReason.CRASH, EndReason.LOST, EndReason.HANG])
ENDINGS = st.builds(
    AttemptResult,
    kind=KINDS,
    reason=st.just("why"),
    how=st.sampled_from(["a", "b"]),
    step=st.none() | st.integers(0, 3),
)
POLICIES = st.builds(
    Policy,
    failures=st.integers(0, 5),
    preemptions=st.none() | st.integers(0, 5),
    sizes=st.sets(st.integers(1, 8), min_size=1).map(sorted),
    wait_for_hosts_s=st.floats(0, 1000),
)
HAPPENINGS = st.tuples(
    ENDINGS, st.integers(0, 8), st.none() | st.integers(1, 20), st.floats(0, 100)
)


ENDS = (EndReason.FINISHED, EndReason.STOPPED, EndReason.FINAL)
EARLY = ENDINGS.filter(lambda ending: ending.kind not in ENDS)


@given(POLICIES, st.data())
def test_without_progress_the_attempts_are_bounded(policy: Policy, data: st.DataObject) -> None:
    run, now_s = Supervisor(policy), 0.0
    run.committed(3)  # no step of ENDINGS is further
    run.began(policy.sizes[-1])
    for _ in range(policy.failures + LOSSES_IN_VAIN + 6):
        run.ended(data.draw(EARLY), now_s)
        now_s += 1e6
        if isinstance(run.decide(8, now_s), RunEnded):
            return
        run.began(policy.sizes[-1])
    raise AssertionError("it is started again and again")


@given(st.lists(EARLY, max_size=60))
def test_with_progress_between_them_any_number_of_attempts_is_allowed(endings: list) -> None:
    run, now_s = supervisor(), 0.0
    for step, ending in enumerate(endings, 1):
        run.committed(step)
        run.ended(ending, now_s)
        now_s += 1e6
        assert run.decide(4, now_s) == StartAttempt(4)
        run.began(4)


@given(POLICIES, st.lists(HAPPENINGS, max_size=40))
def test_it_never_waits_for_nothing(policy: Policy, happenings: list) -> None:
    """Whatever happens: when the wait that was decided is over, something is done."""
    run, now_s = Supervisor(policy), 0.0
    for ending, alive, saved, passed_s in happenings:
        decision = _settle(run, alive, now_s)
        if isinstance(decision, RunEnded):
            assert run.decide(8, now_s + 1e6) == decision, "over is over"
            return
        assert isinstance(decision, StartAttempt)
        assert decision.hosts in policy.sizes
        assert decision.hosts <= max(alive, 0)
        run.began(decision.hosts)
        assert run.decide(alive, now_s) == KeepRunning()
        if saved:
            run.committed(saved)
        now_s += 5000 + passed_s
        run.ended(ending, now_s)


def _settle(run: Supervisor, alive: int, now_s: float) -> Decision:
    """What is decided in the end while nothing else happens: at most a back-off and a wait."""
    for _ in range(3):
        decision = run.decide(alive, now_s)
        if not isinstance(decision, Wait):
            return decision
        assert now_s < decision.until_s < now_s + 1301
        now_s = decision.until_s
    raise AssertionError(f"it waits again and again: {decision}")


def test_crash_and_hang_count_as_failure_loss_and_preemption_as_loss() -> None:
    assert [kind for kind in EndReason if kind.is_failure] == [EndReason.CRASH, EndReason.HANG]
    assert [kind for kind in EndReason if kind.is_loss] == [EndReason.LOST, EndReason.PREEMPTED]
