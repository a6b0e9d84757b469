"""Which steps are saved: all processes decide the same, and nothing that was requested is lost."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint import policy as schedules
from trainer.checkpoint.auto_interval import REQUEST_STEPS, AutoInterval
from trainer.checkpoint.policy import Schedule
from trainer.contract.config.checkpoint import Checkpoint
from trainer.contract.planning.save_interval import SaveStatistics
from trainer.distributed.stop_vote import StopRequest, StopSignal


class Clock:
    def __init__(self, patch) -> None:
        self.now_s = 0.0
        patch.setattr(schedules.time, "monotonic", lambda: self.now_s)


def _run(schedule: list[Schedule], steps, before_step=lambda step: None, stop_at=None):
    """Steps that each schedule saves, with the loop's one step of delay in what is agreed."""
    saved, agreed, stops = [[] for _ in schedule], None, False
    for step in range(1, steps + 1):
        before_step(step)
        request = max(one.request() for one in schedule)
        for one, mine in zip(schedule, saved, strict=True):
            if agreed:
                one.agree(*agreed)
            stops = one.stops
            if one.is_due(step):
                mine.append(step)
                one.agree(step, request)
                one.saved(step)
        agreed = (step, request)
        if stops:
            break
    return saved


def _of(policy, steps, count=1, stops=None):
    return [
        Schedule(
            Checkpoint(**policy), steps, stops[p] if stops else StopSignal(), keeps_time=p == 0
        )
        for p in range(count)
    ]


def test_by_steps_and_always_the_last():
    assert _run(_of({"every_steps": 4}, 10), 10) == [[4, 8, 10]]


def test_by_minutes_two_steps_after_the_time_is_up():
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)

        def tick(step):
            clock.now_s = 10.0 * step  # ten seconds a step

        saved = _run(_of({"every_minutes": 1}, 20, count=3), 20, tick)
    assert saved[0] == [7, 14, 20]
    assert saved[1] == saved[2] == saved[0]


def test_an_automatic_interval_of_process_0_reaches_all_processes():
    known = SaveStatistics(faults=10, host_s=10.1 * 50 - 60, blocked_s=4.0, saves=1)
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        auto = AutoInterval(known, 1, 0.0, lambda *_: None)
        assert auto.seconds == pytest.approx(20.0)  # sqrt(2 * 4 * 50)
        policy = Checkpoint(every_minutes="auto")
        every = [
            Schedule(policy, 30, StopSignal(), keeps_time=p == 0, auto=None if p else auto)
            for p in range(3)
        ]

        def tick(step):
            clock.now_s = 2.0 * step
            auto.stepped(2.0)

        saved = _run(every, 30, tick)
    assert saved[0] == saved[1] == saved[2]
    # 20 s are ten steps: requested two steps earlier, and saved one step later, as of minutes.
    gaps = {after - before for before, after in itertools.pairwise(saved[0][:-1])}
    assert gaps == {10 - REQUEST_STEPS + 1}


@given(process=st.integers(0, 3), at=st.integers(1, 20), every=st.none() | st.integers(1, 7))
def test_a_stop_asked_of_any_process_saves_the_same_step_on_all(process, at, every):
    stops = [StopSignal() for _ in range(4)]

    def ask(step):
        stops[process].received |= step == at

    policy = {"every_steps": every} if every else {"every_minutes": 60}
    saved = _run(_of(policy, 30, 4, stops), 30, ask)
    assert all(mine == saved[0] for mine in saved)
    assert at < saved[0][-1] <= at + 1


def test_without_a_stop_nothing_is_requested():
    (one,) = _of({"every_steps": 3}, 10)
    assert one.request() == StopRequest.NOTHING and not one.stops
