"""Events reach a launcher that listens, and never stop one's work for one that does not."""

import json
import os

import pytest

from trainer.environment import Environment
from trainer.events import Events


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
    _events(writer).emit("step", step=7, loss=1.5)
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


@pytest.mark.parametrize("text", ["x" * 100_000, "\x00" * 50_000, "😀" * 50_000])
def test_a_long_message_is_cut_to_one_piece(pipe, text):
    reader, writer = pipe
    _events(writer).emit("error", message=text)
    line = os.read(reader, 1 << 20)
    assert len(line) < 4096
    assert text.startswith(json.loads(line)["message"][:100])


def test_a_reader_that_has_stopped_stalls_nothing(pipe):
    reader, writer = pipe
    events = _events(writer)
    for step in range(5000):
        events.emit("step", step=step)
    events.emit("finished", last_word=True)
    lines = os.read(reader, 1 << 20).splitlines()
    assert 0 < len(lines) < 5000
    assert all(json.loads(line)["event"] == "step" for line in lines)


def test_a_reader_that_has_gone_stalls_nothing(pipe):
    reader, writer = pipe
    events = _events(writer)
    os.close(reader)
    events.emit("step", step=1)
    assert not events.heard


def test_without_a_launcher_nothing_is_written():
    events = Events(Environment())
    events.emit("step", step=1)
    assert not events.heard
