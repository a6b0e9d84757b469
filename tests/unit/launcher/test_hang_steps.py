"""When a gang hangs in its steps, and which hosts hold it up."""

from dataclasses import replace

import pytest

from tests.support.watched_gang import IDLE, LIMITS, LONGEST_S, POLL_INTERVAL_S, Gang, who
from trainer.contract.protocol.events import HeartbeatEvent

BUSY = {**IDLE, "busy_share": 0.9}


def test_a_gang_that_makes_steps_does_not_hang() -> None:
    Gang(3).train(steps=100, step_s=4.0)


def test_host_sleeping_in_data_loader_is_named() -> None:
    gang = Gang(3)
    gang.train()
    gang.step(11, 0, 2)
    gang.at[1] = ("data", 10)
    hang = gang.wait(60)
    assert who(hang) == [1]
    assert str(hang) == (
        "host-0001: no progress in data after step 10 for 10 s "
        "(limit 10 s: deadlines.step_s of the job)"
    )


def asleep_in_its_loader(busy: dict[str, float]) -> Gang:
    """A gang whose host 1 waits for data after step 10, and uses the processor so much."""
    gang = Gang(3)
    gang.train(step_s=0.5)
    gang.step(11, *(process for process in gang.at if process != 1))
    gang.at[1] = ("data", 10)
    gang.busy[1] = {**IDLE, **busy}
    return gang


def test_an_idle_host_that_others_wait_for_has_less_time() -> None:
    hang = asleep_in_its_loader(IDLE).wait(60)
    assert str(hang) == (
        "host-0001: idle, no progress in data after step 10 for 4 s "
        "(limit 4 s: deadlines.step_s of the job)"
    )


@pytest.mark.parametrize(
    "busy",
    [{"busy_share": 0.5}, {"cpu_probe_s": 0.2}, {"busy_share": 1.0}],
    ids=["it computes", "it waits for a processor", "it waits for a disk"],
)
def test_a_host_that_is_busy_has_the_whole_limit(busy: dict[str, float]) -> None:
    hang = asleep_in_its_loader(busy).wait(60)
    assert hang and (hang.deadline_s, hang.idle) == (10.0, False)


def test_idle_hosts_that_are_all_at_one_place_have_the_whole_limit() -> None:
    """They may wait for their network."""
    gang = Gang(2)
    gang.train()
    gang.busy = dict.fromkeys(gang.at, IDLE)
    hang = gang.wait(60)
    assert hang and (hang.deadline_s, hang.everybody) == (10.0, True)


def test_a_single_idle_host_waits_for_no_network() -> None:
    gang = Gang(1)
    gang.train(step_s=0.5)
    gang.busy[0] = IDLE
    hang = gang.wait(60)
    assert hang and (hang.deadline_s, hang.idle) == (4.0, True)


def test_an_idle_host_has_three_times_its_usual_step() -> None:
    gang = Gang(1)
    gang.train(step_s=1.5)
    gang.busy[0] = IDLE
    hang = gang.wait(60)
    assert hang and hang.deadline_s == pytest.approx(4.5)


@pytest.mark.parametrize(
    ("busy_share", "deadline_s"),
    [(0.9, 4.0), (IDLE["busy_share"], 9.0)],
    ids=["busy, as beside a save", "idle, as for slow data"],
)
def test_long_steps_give_an_idle_host_more_time_if_it_was_idle(
    busy_share: float, deadline_s: float
) -> None:
    gang = Gang(1)
    gang.busy[0] = {**IDLE, "busy_share": busy_share}
    gang.train(steps=3, step_s=3.0)
    gang.busy[0] = IDLE
    gang.train(steps=7, step_s=1.0, after=3)
    hang = gang.wait(60)
    assert hang and hang.deadline_s == pytest.approx(deadline_s)


def test_a_host_that_was_never_idle_has_half_a_step_more() -> None:
    gang = Gang(1)
    gang.busy[0] = BUSY
    gang.train(step_s=3.0)
    gang.busy[0] = IDLE
    hang = gang.wait(60)
    assert hang and hang.deadline_s == pytest.approx(4.5)


@pytest.mark.parametrize(("use", "deadline_s"), [(BUSY, 4.0), (IDLE, 5.7)], ids=["busy", "idle"])
def test_a_heartbeat_says_whether_the_steps_before_it_were_idle(
    use: dict[str, float], deadline_s: float
) -> None:
    gang = Gang(1)
    gang.begin("train")
    for number in (1, 2, 3):
        gang.now += 1.9
        gang.step(number)
    gang.busy[0] = use
    gang.beat()
    gang.busy[0] = IDLE
    hang = gang.wait(60)
    assert hang and hang.deadline_s == pytest.approx(deadline_s)


def test_of_two_hosts_at_one_step_the_one_that_waits_for_data_is_behind() -> None:
    gang = Gang()
    gang.train()
    gang.at[0] = ("data", 10)
    assert who(gang.wait(60)) == [0]


def test_a_collective_that_never_ends_is_everybodys() -> None:
    gang = Gang(4)
    gang.train()
    hang = gang.wait(60)
    assert who(hang) == [0, 1, 2, 3]
    assert str(hang).startswith("all 4 hosts: no progress in train after step 10 for 10 s")


def test_host_behind_is_found_although_others_may_take_longer() -> None:
    """The others have gone on to a save, which has minutes; the one that they wait for has not."""
    gang = Gang()
    gang.train()
    gang.step(11, 0)
    gang.begin("save", 0)
    begin = gang.now
    assert who(gang.wait(60)) == [1]
    assert gang.now - begin < 12


def test_the_deadline_of_a_step_grows_with_the_steps() -> None:
    gang = Gang()
    gang.train(steps=10, step_s=30)
    begin = gang.now
    hang = gang.wait(1000)
    assert hang and hang.deadline_s == pytest.approx(LIMITS.factor * 30, rel=0.1)
    assert gang.now - begin == pytest.approx(hang.deadline_s, abs=2 * POLL_INTERVAL_S)


def test_one_slow_step_changes_the_deadline_of_the_others_little() -> None:
    gang = Gang()
    gang.train(steps=50)
    gang.train(steps=1, step_s=9, after=50)
    gang.train(steps=50, after=51)
    hang = gang.wait(1000)
    assert hang and hang.deadline_s == LIMITS.learned_floor_s["train"]


def test_the_first_steps_have_minutes() -> None:
    gang = Gang()
    gang.begin("train")
    assert gang.wait(LIMITS.other_phases_s - 1) is None
    assert gang.wait(2)


def test_host_waiting_for_moving_host_does_not_hang() -> None:
    """Host 0 has prepared its data and waits in the start for host 1, which still reads."""
    gang = Gang()
    gang.begin("data", 1)
    for done in range(10):
        gang.say(1, "progress", done=done, total=10, unit="bytes")
        assert gang.wait(200) is None
    assert who(gang.wait(LONGEST_S)) == [1]


def test_nobody_waits_for_a_host_that_has_ended() -> None:
    gang = Gang()
    gang.train()
    gang.end(1)
    gang.train(steps=30, after=10)
    gang.watch.on_event(HeartbeatEvent(process=1, phase="end", step=10), gang.now)
    gang.train(steps=30, after=40)


def test_a_warning_from_another_thread_is_no_progress() -> None:
    gang = Gang()
    gang.train()
    for _ in range(20):
        gang.say(0, "warning", message="the disk is slow")
        gang.say(0, "checkpoint_saved", step=5)
        if gang.wait(1):
            return
    raise AssertionError("not found")


def test_many_hosts_are_counted_not_listed() -> None:
    gang = Gang(100)
    gang.train()
    gang.step(11, *range(50))
    assert "host-0057 and 42 more: no progress" in str(gang.wait(60))


def test_stuck_host_is_reported_with_its_frames() -> None:
    gang = Gang()
    gang.train()
    gang.step(11, 0)
    hang = gang.wait(60)
    assert hang is not None
    assert str(replace(hang, doing="feed.py:31 in next")).endswith(
        "; host-0001 is at feed.py:31 in next"
    )
