"""What follows when an attempt ends: budgets, back-off, waiting for hosts, giving up."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from launcher.supervisor import (
    Attend,
    Decision,
    Ending,
    Kind,
    Over,
    Policy,
    Start,
    Supervisor,
    Wait,
)

FIXED = Policy(failures=3, preemptions=None, sizes=[4], wait_for_hosts_s=100.0)
ELASTIC = replace(FIXED, sizes=[2, 4])
CRASH = Ending(Kind.CRASH, "host-0001 exited with code 1", "exited with code 1", 1, 7)
LOSS = Ending(Kind.LOST, "host-0001 was lost", "lost", 1, 7)


def crash(step: int) -> Ending:
    return replace(CRASH, step=step)


def supervisor(policy: Policy = FIXED) -> Supervisor:
    """With a first attempt that runs on all hosts."""
    started = Supervisor(policy)
    started.began(policy.sizes[-1])
    return started


def end(run: Supervisor, ending: Ending, now_s: float = 0.0, alive: int = 4) -> Decision:
    run.ended(ending, now_s)
    return run.decide(alive, now_s)


def restart(run: Supervisor, ending: Ending) -> float:
    """End the attempt and begin the next one as soon as that may be; the back-off in seconds."""
    decision = end(run, ending)
    if isinstance(decision, Wait):
        assert run.decide(4, decision.until_s) == Start(4)
    run.began(4)
    return decision.until_s if isinstance(decision, Wait) else 0.0


def over(decision: Decision) -> Over:
    assert isinstance(decision, Over)
    return decision


def test_the_first_attempt_starts_on_all_hosts() -> None:
    assert Supervisor(FIXED).decide(4, 0.0) == Start(4)


def test_while_an_attempt_runs_there_is_nothing_to_decide() -> None:
    assert supervisor().decide(0, 0.0) == Attend()


def test_a_finished_attempt_ends_the_run() -> None:
    assert end(supervisor(), Ending(Kind.FINISHED, "")) == Over("finished", "")


def test_a_stop_by_the_user_ends_the_run() -> None:
    assert over(end(supervisor(), Ending(Kind.STOPPED, "asked"))).state == "stopped"


def test_a_final_failure_is_not_tried_again() -> None:
    assert over(end(supervisor(), Ending(Kind.FINAL, "not finite"))).reason == "not finite"


def test_the_first_failure_is_tried_again_at_once() -> None:
    assert end(supervisor(), CRASH) == Start(4)


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


def test_a_checkpoint_that_is_told_again_renews_nothing() -> None:
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


def test_other_failures_between_them_are_not_deterministic() -> None:
    run = supervisor(replace(FIXED, failures=100))
    for ending in (CRASH, CRASH, crash(8), CRASH, CRASH, replace(CRASH, how="SIGKILL"), CRASH):
        restart(run, ending)


def test_a_lost_host_is_not_charged_to_the_failures() -> None:
    run = supervisor(replace(FIXED, failures=0))
    for _ in range(20):
        restart(run, LOSS)
    assert (run.failures, run.losses) == (0, 20)


def test_losses_beyond_their_own_budget_end_the_run() -> None:
    run = supervisor(replace(FIXED, preemptions=1))
    restart(run, LOSS)
    assert "retries.preemptions: 1 is spent" in over(end(run, LOSS)).reason


def test_a_missing_host_is_waited_for() -> None:
    run = supervisor()
    assert end(run, LOSS, now_s=50.0, alive=3) == Wait(
        "waiting_for_hosts", 150.0, "3 of 4 hosts are alive"
    )
    assert run.decide(4, 60.0) == Start(4)


def test_a_host_that_never_comes_ends_a_run_that_needs_it() -> None:
    run = supervisor()
    end(run, LOSS, now_s=50.0, alive=3)
    reason = over(run.decide(3, 150.0)).reason
    assert reason == (
        "3 of 4 hosts are alive, at least 4 are needed, and none has come in 100 s. "
        "Before that: host-0001 was lost"
    )


def test_an_elastic_run_goes_on_with_the_most_that_fits() -> None:
    run = supervisor(ELASTIC)
    end(run, LOSS, alive=3)
    assert run.decide(3, 100.0) == Start(2)


def test_a_smaller_run_that_fails_again_does_not_wait_again() -> None:
    run = supervisor(ELASTIC)
    end(run, LOSS, alive=3)
    run.decide(3, 100.0)
    run.began(2)
    run.ended(CRASH, 200.0)
    assert run.decide(3, 202.0) == Start(2)


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
    assert end(run, Ending(Kind.RESIZED, "")) == Start(4)
    assert (run.failures, run.losses) == (0, 1)


KINDS = st.sampled_from([*Kind, Kind.CRASH, Kind.LOST, Kind.HANG])
ENDINGS = st.builds(
    Ending,
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


@given(POLICIES, st.lists(HAPPENINGS, max_size=40))
def test_it_never_waits_for_nothing(policy: Policy, happenings: list) -> None:
    """Whatever happens: when the wait that was decided is over, something is done."""
    run, now_s = Supervisor(policy), 0.0
    for ending, alive, saved, passed_s in happenings:
        decision = _settle(run, alive, now_s)
        if isinstance(decision, Over):
            assert run.decide(8, now_s + 1e6) == decision, "over is over"
            return
        assert isinstance(decision, Start)
        assert decision.hosts in policy.sizes
        assert decision.hosts <= max(alive, 0)
        run.began(decision.hosts)
        assert run.decide(alive, now_s) == Attend()
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
