"""The order in which the loop dispatches steps, reads their results and calls callbacks."""

import time
from typing import Any, cast

import pytest

from tests.support.harness import bench
from tests.support.jobs import job_of
from trainer.checkpoint.initial_state import InitialState
from trainer.checkpoint.policy import NoSaving
from trainer.distributed.process_env import Environment
from trainer.distributed.stop_vote import StopVote
from trainer.loop import Callback, Loop, Training
from trainer.step.spike_policy import SpikePolicy
from trainer.step.spikes import RecentSteps
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import EvalResult, Evaluation

STEPS, DUE_STEP, PAUSE_S = 4, 2, 0.3


class Recorder(Callback):
    """Evaluates after DUE_STEP, and records its calls."""

    def __init__(self):
        self.calls, self.step_times_s, self.losses = [], [], []

    def before_step(self, step):
        self.calls.append(("before", step))

    def on_step_end(self, result):
        self.calls.append(("end", result.step))
        self.step_times_s.append(result.step_time_s)
        self.losses.append(float(result.metrics.loss))

    def is_due(self, step):
        return step == DUE_STEP

    def on_due(self, step, state):
        self.calls.append(("due", int(state.step)))
        time.sleep(PAUSE_S)
        return EvalResult(Evaluation(1.0), None, PAUSE_S)

    def on_eval(self, step, result):
        self.calls.append(("eval", step))


@pytest.fixture(scope="module")
def recorded():
    """A run's recorder, its last loss, and the seconds that it took."""
    made = bench(job_of(steps=STEPS))

    def step(state, batch, requests, limits):
        return made.compiled(state, batch)

    recorder = Recorder()
    spikes = SpikePolicy(made.program, RecentSteps(), cast(Any, None))
    training = Training(STEPS, step, made.loader, StopVote(made.program.mesh), NoSaving(), spikes)
    loop = Loop(training, [recorder], Events(Environment.read({})))
    begin = time.perf_counter()
    _, loss = loop.run(InitialState(made.initial()))
    return recorder, loss, time.perf_counter() - begin


def test_results_are_read_one_step_behind_unless_a_callback_is_due(recorded):
    recorder, _, _ = recorded
    assert recorder.calls == [
        ("before", 1),
        ("before", 2), ("end", 1), ("end", 2), ("due", 2), ("eval", 2),
        ("before", 3),
        ("before", 4), ("end", 3), ("end", 4),
    ]  # fmt: skip


def test_step_times_exclude_callbacks_that_are_due(recorded):
    recorder, _, took_s = recorded
    assert sum(recorder.step_times_s) <= took_s - PAUSE_S


def test_the_loss_is_that_of_the_last_step(recorded):
    recorder, loss, _ = recorded
    assert loss == recorder.losses[-1] and len(recorder.losses) == STEPS
