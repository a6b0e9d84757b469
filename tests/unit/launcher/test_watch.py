"""When a gang counts as hanging, and who holds it up: played by a clock of the test's own."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.results import Hang
from launcher.health.hangs import KEYS, LONGEST_INTERVAL_S, PHASES, PROGRESS, HangDetector, Limits
from tests.support.run_folders import event_of
from trainer.contract.config.job import Deadlines
from trainer.contract.protocol.events import HeartbeatEvent, StepEvent

LIMITS = Limits()
POLL_INTERVAL_S, BEAT_S = 0.5, 2.0
IDLE = {"busy_share": 0.002, "cpu_probe_s": 0.001}
LONGEST_S = max([*LIMITS.phase_s.values(), LIMITS.other_phases_s])


class Gang:
    """Hosts that send heartbeats and say what they are told to."""

    def __init__(
        self, processes: int = 2, limits: Limits = LIMITS, *, expects_events: bool = False
    ) -> None:
        self.watch = HangDetector(processes, limits, expects_events=expects_events)
        self.now = 1000.0
        self.at: dict[int, tuple[str, int]] = dict.fromkeys(range(processes), ("start", 0))
        self.busy: dict[int, dict[str, float]] = {}
        """What the heartbeats of a process say of its use of the processor."""

    def say(self, process: int, event: str, **fields: Any) -> None:
        self.watch.on_event(event_of({"process": process, "event": event, **fields}), self.now)

    def begin(self, phase: str, *processes: int) -> None:
        for process in processes or self.at:
            self.at[process] = (phase, self.at[process][1])
            self.say(process, "phase", name=phase, edge="begin")

    def step(self, number: int, *processes: int) -> None:
        for process in processes or self.at:
            self.at[process] = ("train", number)
            self.say(process, "step", step=number)

    def train(self, steps: int = 10, step_s: float = 1.0, after: int = 0) -> None:
        """Every host makes steps, and none of that is a hang."""
        self.begin("train")
        for number in range(after + 1, after + steps + 1):
            assert self.wait(step_s) is None
            self.step(number)

    def beat(self, *silent: int) -> None:
        for process, (phase, step) in self.at.items():
            if process not in silent:
                busy = self.busy.get(process, {})
                self.say(process, "heartbeat", phase=phase, step=step, **busy)

    def wait(self, seconds: float, *silent: int) -> Hang | None:
        """Heartbeats and looks for so long, or until there is a hang."""
        until, beat_at = self.now + seconds, self.now
        while self.now < until:
            if self.now >= beat_at:
                self.beat(*silent)
                beat_at += BEAT_S
            self.now = min(self.now + POLL_INTERVAL_S, until)
            if hang := self.watch.poll(self.now):
                return hang
        return None

    def end(self, process: int) -> None:
        self.watch.on_end(process)
        del self.at[process]


def who(hang: Hang | None) -> list[int]:
    assert hang is not None
    return [one.process for one in hang.behind]


def test_a_host_that_the_kernel_has_stopped_hangs_at_once() -> None:
    gang = Gang()
    gang.train()
    gang.say(1, "suspended", seconds=3.0)
    hang = gang.wait(0.5)
    assert hang and [host.process for host in hang.behind] == [1]
    assert str(hang) == (
        "host-0001: stopped by a signal (SIGSTOP) in train after step 10 (limit 3 s)"
    )


def test_nor_must_its_program_send_events() -> None:
    gang = Gang()
    gang.say(0, "suspended", seconds=3.0)
    hang = gang.wait(0.5, 0, 1)
    assert hang and [host.process for host in hang.behind] == [0]


def test_one_that_has_ended_since_does_not() -> None:
    gang = Gang()
    gang.train()
    gang.say(1, "suspended", seconds=3.0)
    gang.watch.on_end(1)
    assert gang.wait(0.5) is None


def test_a_gang_that_makes_steps_does_not_hang() -> None:
    Gang(3).train(steps=100, step_s=4.0)


def test_a_host_that_falls_silent_is_named() -> None:
    gang = Gang(3)
    gang.train()
    hang = gang.wait(60, 2)
    assert who(hang) == [2]
    assert str(hang) == "host-0002: last heard of in train after step 10, 12 s ago (limit 12 s)"


def test_silence_is_found_within_seconds() -> None:
    gang = Gang()
    gang.train()
    begin = gang.now
    assert gang.wait(60, 0, 1)
    assert LIMITS.silence_s <= gang.now - begin <= LIMITS.silence_s + BEAT_S


def test_libraries_that_are_slow_to_import_are_no_silence_yet() -> None:
    gang = Gang()
    gang.beat()
    assert gang.wait(50, 1) is None
    assert who(gang.wait(20, 1)) == [1]


def test_a_first_step_that_holds_the_interpreter_is_no_silence_yet() -> None:
    gang = Gang()
    gang.beat()
    gang.begin("train")
    assert gang.wait(50, 0, 1) is None
    assert who(gang.wait(20, 0, 1)) == [0, 1]


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


def test_programs_that_send_no_events_never_hang() -> None:
    watch = HangDetector(2)
    assert not any(watch.poll(second / 2) for second in range(100_000))


def test_a_program_without_heartbeats_is_not_silent_between_its_steps() -> None:
    watch, now = HangDetector(1), 0.0
    for step in range(1, 10):
        watch.on_event(StepEvent(process=0, step=step), now)
        for _ in range(80):
            now += POLL_INTERVAL_S
            assert watch.poll(now) is None
    assert any(watch.poll(now + look * POLL_INTERVAL_S) for look in range(400))


def test_a_driver_that_was_stopped_blames_nobody() -> None:
    gang = Gang()
    gang.train()
    gang.now += 3600
    assert gang.watch.poll(gang.now) is None
    gang.train(steps=5, after=10)


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


names = st.sampled_from(PHASES) | st.text(max_size=3)
values = names | st.integers() | st.floats() | st.none() | st.lists(st.booleans(), max_size=2)
kinds = st.sampled_from(["heartbeat", "phase", "step", "progress", "finished", "error", "other"])
fields = st.dictionaries(
    st.sampled_from(["phase", "name", "step", "host_time_s", "step_time_s", "cpu_probe_s", "time"]),
    values,
)
senders = st.integers(-1, 4) | values
edges = st.sampled_from(["begin", "end", None])
events = st.builds(
    lambda process, event, edge, rest: {**rest, "process": process, "event": event, "edge": edge},
    senders,
    kinds | st.text(max_size=3),
    edges,
    fields,
)
ticks = st.floats(-5, 50, allow_nan=False)
ends = st.integers(0, 3)


@given(st.lists(st.tuples(ticks, events | ends)))
def test_whatever_was_said_a_host_that_lives_and_speaks_has_a_deadline(history) -> None:
    """If no host says any more than that it is alive, there is a hang after a finite time."""
    limits = Limits(phase_s={}, other_phases_s=60.0)
    watch, now, speaking, ended = HangDetector(4, limits), 0.0, set(), set()
    for passed_s, said in history:
        now += passed_s
        if isinstance(said, int):
            watch.on_end(said)
            ended.add(said)
        else:
            event = event_of(said)
            watch.on_event(event, now)
            if isinstance(event, (HeartbeatEvent, *PROGRESS)) and event.process is not None:
                speaking.add(event.process)
        watch.poll(now)
        watch.stragglers(now)
    learned_s = max(limits.learned_floor_s.values()) + limits.factor * LONGEST_INTERVAL_S * len(
        history
    )
    looks = range(int((60.0 + learned_s) / LONGEST_INTERVAL_S) + 2)
    hangs = (watch.poll(now + LONGEST_INTERVAL_S * (look + 1)) for look in looks)
    assert any(hangs) == bool((speaking - ended) & set(range(4)))


@given(st.lists(st.floats(0, 9), max_size=40), st.integers(1, 4))
def test_no_pace_of_steps_that_is_faster_than_the_floor_is_a_hang(step_times_s, hosts) -> None:
    gang = Gang(hosts)
    gang.begin("train")
    for number, step_time_s in enumerate(step_times_s):
        assert gang.wait(step_time_s) is None
        gang.step(number + 1)


def test_a_host_that_never_speaks_is_behind_where_it_should() -> None:
    """The one that is heard waits for it in `start`, too, and comes no further."""
    gang = Gang(2, expects_events=True)
    assert gang.wait(299.0, 1) is None
    assert who(gang.wait(2.0, 1)) == [0, 1]


def test_a_word_from_a_program_that_promises_nothing_starts_no_watch() -> None:
    gang = Gang(2)
    gang.say(0, "warning", message="careful")
    assert gang.watch.poll(gang.now + 1e6) is None
