"""What holds for hangs whatever the hosts say, and at any pace."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.health.hangs import LONGEST_INTERVAL_S, PHASES, PROGRESS, HangDetector, Limits
from tests.support.run_folders import event_of
from tests.support.watched_gang import Gang
from trainer.contract.protocol.events import HeartbeatEvent

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
