"""What TensorBoard is shown of a run."""

import struct
from typing import Any

from tensorboardX.proto import event_pb2

from tests.support.jobs import job_of
from trainer.distributed.process_env import Environment
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import EvalResult, Evaluation, Report, TaskResults


def _report(folder, process=0, **changes):
    environment = Environment(process=process)
    return Report(job_of(**changes), environment, folder, Events(environment))


def _values(folder):
    """(step, name, number or text) of every file: records of a length, its check, and an event."""
    messages: Any = event_pb2
    for path in sorted((folder / "tensorboard").iterdir()):
        data, place = path.read_bytes(), 0
        while place < len(data):
            (length,) = struct.unpack_from("<Q", data, place)
            event = messages.Event.FromString(data[place + 12 : place + 12 + length])
            place += 16 + length
            for value in event.summary.value:
                text = [part.decode() for part in value.tensor.string_val]
                yield event.step, value.tag, *(text or [value.simple_value])


def test_it_has_the_numbers_the_samples_and_the_job(tmp_path):
    report = _report(tmp_path, tensorboard=True)
    for step in (1, 2, 3):
        loss = {"loss": 4.0 - step, "learning_rate": 0.5, "tokens_per_s": 1.0, "examples": "ff"}
        report.step(step, loss)
    report.sampled(2, "def f():")
    report.evaluation(3, EvalResult(Evaluation(0.5), TaskResults(None, {"a/acc": 0.25}), 1.0))
    report.finished("def g():")
    report.close()
    shown = {(step, name.removesuffix("/text_summary")): v for step, name, v in _values(tmp_path)}
    assert [shown[step, "loss"] for step in (1, 2, 3)] == [3, 2, 1]
    assert (shown[3, "eval_loss"], shown[3, "a/acc"]) == (0.5, 0.25)
    assert (3, "examples") not in shown
    assert (shown[2, "sample"], shown[3, "sample"]) == ("    def f():", "    def g():")
    assert "name: tiny" in shown[1, "job"]


def test_without_a_wish_and_on_other_processes_there_is_nothing(tmp_path):
    for report in (_report(tmp_path), _report(tmp_path, process=1, tensorboard=True)):
        report.step(1, {"loss": 1.0, "learning_rate": 0.5, "tokens_per_s": 1.0})
        report.close()
    assert not (tmp_path / "tensorboard").exists()
