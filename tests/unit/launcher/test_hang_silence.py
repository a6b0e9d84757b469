"""When a gang hangs because a host says nothing, or was stopped."""

from launcher.health.hangs import HangDetector
from tests.support.watched_gang import BEAT_S, LIMITS, POLL_INTERVAL_S, Gang, who
from trainer.contract.protocol.events import StepEvent


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


def test_a_host_that_never_speaks_is_behind_where_it_should() -> None:
    """The one that is heard waits for it in `start`, too, and comes no further."""
    gang = Gang(2, expects_events=True)
    assert gang.wait(299.0, 1) is None
    assert who(gang.wait(2.0, 1)) == [0, 1]


def test_a_word_from_a_program_that_promises_nothing_starts_no_watch() -> None:
    gang = Gang(2)
    gang.say(0, "warning", message="careful")
    assert gang.watch.poll(gang.now + 1e6) is None
