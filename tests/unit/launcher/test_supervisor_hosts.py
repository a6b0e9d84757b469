"""Waiting for hosts, resizes, and what holds for every sequence of events."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.controller.supervisor import (
    LOSSES_IN_VAIN,
    Decision,
    KeepRunning,
    Policy,
    RunEnded,
    StartAttempt,
    Supervisor,
    Wait,
)
from launcher.core.results import AttemptResult
from launcher.core.states import EndReason, RunState
from tests.support.supervisors import CRASH, ELASTIC, LOSS, end, over, supervisor


def test_a_missing_host_is_waited_for() -> None:
    run = supervisor()
    assert end(run, LOSS, now_s=50.0, alive=3) == Wait(
        RunState.WAITING_FOR_HOSTS, 150.0, "3 of 4 hosts are alive"
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


def test_a_host_that_comes_starts_the_wait_for_the_others_again() -> None:
    run = supervisor()
    end(run, LOSS, now_s=50.0, alive=3)
    assert run.decide(2, 140.0) == Wait(RunState.WAITING_FOR_HOSTS, 150.0, "2 of 4 hosts are alive")
    assert run.decide(3, 145.0) == Wait(RunState.WAITING_FOR_HOSTS, 245.0, "3 of 4 hosts are alive")
    assert "none has come in 100 s" in over(run.decide(3, 245.0)).reason


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
    assert run.decide(2, 202.0) == Wait(RunState.WAITING_FOR_HOSTS, 302.0, "2 of 4 hosts are alive")


def test_it_grows_when_hosts_come_back() -> None:
    run = supervisor(ELASTIC)
    end(run, LOSS, alive=3)
    run.decide(3, 100.0)
    run.began(2)
    assert not run.wants_to_grow(3)
    assert run.wants_to_grow(4)
    assert end(run, AttemptResult(EndReason.RESIZED, "")) == StartAttempt(4)
    assert (run.failures, run.losses) == (0, 1)


def test_a_limit_takes_hosts_at_once_and_keeps_them_away() -> None:
    run = supervisor(ELASTIC)
    assert not run.wants_to_shrink()
    run.limit(3)
    assert run.wants_to_shrink()
    assert end(run, AttemptResult(EndReason.SHRUNK, "")) == StartAttempt(2)
    run.began(2)
    assert not run.wants_to_shrink() and not run.wants_to_grow(4)


def test_a_run_grows_when_its_limit_rises() -> None:
    run = supervisor(ELASTIC)
    run.limit(2)
    end(run, AttemptResult(EndReason.SHRUNK, ""))
    run.began(2)
    run.limit(4)
    assert not run.wants_to_grow(3)
    assert run.wants_to_grow(4)


def test_a_limit_below_the_smallest_size_gives_the_smallest() -> None:
    run = supervisor(ELASTIC)
    run.limit(1)
    assert end(run, AttemptResult(EndReason.SHRUNK, "")) == StartAttempt(2)


def test_a_run_does_not_wait_for_hosts_beyond_its_limit() -> None:
    run = supervisor(ELASTIC)
    run.limit(2)
    assert end(run, LOSS, alive=2) == StartAttempt(2)


KINDS = st.sampled_from([*EndReason, EndReason.CRASH, EndReason.LOST, EndReason.HANG])
ENDINGS = st.builds(
    AttemptResult,
    end_reason=KINDS,
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
    ENDINGS,
    st.integers(0, 8),
    st.none() | st.integers(1, 20),
    st.floats(0, 100),
    st.none() | st.integers(1, 8),
)


ENDS = (EndReason.FINISHED, EndReason.STOPPED, EndReason.FINAL)
EARLY = ENDINGS.filter(lambda ending: ending.end_reason not in ENDS)


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
    for ending, alive, saved, passed_s, limit in happenings:
        run.limit(limit)
        decision = _settle(run, alive, now_s)
        if isinstance(decision, RunEnded):
            assert run.decide(8, now_s + 1e6) == decision, "over is over"
            return
        assert isinstance(decision, StartAttempt)
        assert decision.hosts in policy.sizes
        assert decision.hosts <= max(alive, 0)
        assert limit is None or decision.hosts <= max(limit, policy.sizes[0])
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
