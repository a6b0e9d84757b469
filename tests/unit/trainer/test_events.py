"""Events reach a launcher that listens, and never stop one's work for one that does not."""

import json
import os
import select

import pytest

from trainer.contract.protocol.events import ErrorEvent, FinishedEvent, StepEvent
from trainer.distributed.process_env import Environment
from trainer.telemetry import events as module
from trainer.telemetry.events import Events


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        try:
            os.close(end)
        except OSError:
            pass


def _events(writer):
    return Events(Environment(process=3, attempt=2, events_fd=writer))


def _read(reader):
    return [json.loads(line) for line in os.read(reader, 1 << 20).splitlines()]


def test_an_event_names_its_process_and_attempt(pipe):
    reader, writer = pipe
    _events(writer).emit(StepEvent(step=7, loss=1.5))
    (event,) = _read(reader)
    assert event.pop("time") > 0
    assert event == {"process": 3, "attempt": 2, "event": "step", "step": 7, "loss": 1.5}


def test_phases_have_a_begin_and_an_end(pipe):
    reader, writer = pipe
    events = _events(writer)
    with events.phase("train"), events.phase("evaluate"):
        pass
    said = [(event["name"], event["edge"]) for event in _read(reader)]
    inner = [("evaluate", "begin"), ("evaluate", "end")]
    assert said == [("train", "begin"), *inner, ("train", "end")]


def test_a_phase_that_fails_does_not_end(pipe):
    reader, writer = pipe
    with pytest.raises(KeyError), _events(writer).phase("train"):
        raise KeyError
    assert [event["edge"] for event in _read(reader)] == ["begin"]


@pytest.fixture
def beating(pipe, monkeypatch):
    """Events that beat quickly, and what makes the next heartbeat."""
    monkeypatch.setattr(module, "HEARTBEAT_EVERY_S", 0.02)
    reader, writer = pipe
    events = _events(writer)
    events.start_heartbeat()

    def next_beat():
        """One that was made after this was called: the second that comes."""
        if select.select([reader], [], [], 0)[0]:
            os.read(reader, 1 << 20)
        beats = []
        while len(beats) < 2:
            assert select.select([reader], [], [], 60)[0], "no heartbeat"
            beats += [event for event in _read(reader) if event["event"] == "heartbeat"]
        return beats[-1]

    yield events, next_beat
    events.stop_heartbeat()


def test_a_heartbeat_says_where_the_main_loop_is(beating):
    events, next_beat = beating
    assert (next_beat()["phase"], next_beat()["step"]) == ("start", 0)
    with events.phase("train"):
        assert next_beat()["phase"] == "train"
        with events.doing("data"):
            assert next_beat()["phase"] == "data"
        events.at_step(7, 0.5, 0.1)
        assert (next_beat()["phase"], next_beat()["step"]) == ("train", 7)
    assert next_beat()["phase"] == "end"


def test_what_is_done_in_every_step_is_no_event(pipe):
    reader, writer = pipe
    events = _events(writer)
    with events.phase("train"), events.doing("data"):
        pass
    assert [event["name"] for event in _read(reader)] == ["train", "train"]


def test_a_heartbeat_says_how_much_of_the_last_steps_was_the_hosts_own(beating):
    events, next_beat = beating
    assert "host_time_s" not in next_beat()
    events.at_step(1, 2.0, 1.0)
    beat = next_beat()
    assert (beat["step_time_s"], beat["host_time_s"]) == (2.0, 1.0)
    for step in range(2, 5):
        events.at_step(step, 0.5, 0.25)
    beat = next_beat()
    assert (beat["step_time_s"], beat["host_time_s"]) == (0.5, 0.25)
    assert next_beat()["host_time_s"] == 0.25


def test_a_heartbeat_says_how_long_a_piece_of_work_takes_this_host(beating):
    _, next_beat = beating
    assert 0 < next_beat()["cpu_probe_s"] < 60


def test_a_heartbeat_says_how_busy_the_process_is(beating):
    _, next_beat = beating
    assert next_beat()["busy_share"] >= 0


@pytest.mark.parametrize("text", ["x" * 100_000, "\x00" * 50_000, "😀" * 50_000])
def test_a_long_message_is_cut_to_one_piece(pipe, text):
    reader, writer = pipe
    _events(writer).emit(ErrorEvent(message=text))
    line = os.read(reader, 1 << 20)
    assert len(line) < 4096
    assert text.startswith(json.loads(line)["message"][:100])


def test_a_reader_that_has_stopped_stalls_nothing(pipe):
    reader, writer = pipe
    events = _events(writer)
    for step in range(5000):
        events.emit(StepEvent(step=step))
    events.emit(FinishedEvent(), last_word=True)
    lines = os.read(reader, 1 << 20).splitlines()
    assert 0 < len(lines) < 5000
    assert all(json.loads(line)["event"] == "step" for line in lines)


def test_a_reader_that_has_gone_stalls_nothing(pipe):
    reader, writer = pipe
    events = _events(writer)
    os.close(reader)
    events.emit(StepEvent(step=1))
    assert not events.heard


def test_without_a_launcher_nothing_is_written():
    events = Events(Environment())
    events.emit(StepEvent(step=1))
    assert not events.heard
