"""What follows a spike, and a value that is not finite, by the job's `on_spike`."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.harness import bench
from tests.support.jobs import job_of
from trainer.distributed.process_env import Environment
from trainer.step.spike_policy import MOST_REWINDS, SpikePolicy
from trainer.step.spikes import NotFiniteError, RecentSteps, RewindError, SpikeError
from trainer.step.train_state import StepMetrics
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import Report

CALM = [(step, 2.0 + 0.01 * (step % 3), 0.0) for step in range(1, 101)]
STEP = 101


def policy(on_spike: str, tmp_path: Path, rewinds: int = 0) -> SpikePolicy:
    job = job_of(on_spike=on_spike, checkpoint={"every_steps": 10})
    environment = Environment.read({})
    report = Report(job, environment, tmp_path, Events(environment))
    program = replace(bench(job_of()).program, job=job)
    return SpikePolicy(program, RecentSteps(CALM), report, rewinds)


def metrics(loss: float, *, applied: bool = True) -> StepMetrics:
    one = np.float32(1.0)
    return StepMetrics(np.float32(loss), one, one, one, np.uint32(7), np.bool_(applied), one)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("on_spike", "finite", "other"),
    [
        ("continue", None, NotFiniteError),
        ("skip", None, None),
        ("rewind", RewindError, RewindError),
        ("stop", SpikeError, NotFiniteError),
    ],
)
def test_each_policy_has_its_end(on_spike, finite, other, tmp_path, capsys) -> None:
    judging = policy(on_spike, tmp_path)
    judging.judge(STEP, metrics(2.0))
    assert not capsys.readouterr().out
    spike, broken = metrics(4.0, applied=on_spike != "skip"), metrics(math.nan, applied=False)
    for step, given, error in ((STEP + 1, spike, finite), (STEP + 2, broken, other)):
        if error:
            with pytest.raises(error, match=f"step {step}: loss"):
                judging.judge(step, given)
        else:
            judging.judge(step, given)
        assert f"spike: step {step}: loss" in capsys.readouterr().out


def test_devices_get_limits_only_where_updates_are_skipped(tmp_path) -> None:
    for on_spike in ("continue", "rewind", "stop"):
        assert np.isinf(policy(on_spike, tmp_path).limits(STEP)).all()
    skipping = policy("skip", tmp_path)
    limits = np.asarray(skipping.limits(STEP))
    assert limits.dtype == np.float32 and 2.0 < limits[0] < 3.0 and 1.0 < limits[1] < 3.0


def test_run_that_has_rewound_too_often_stops(tmp_path) -> None:
    with pytest.raises(SpikeError, match=f"rewound {MOST_REWINDS} times"):
        policy("rewind", tmp_path, MOST_REWINDS).judge(STEP, metrics(4.0))
    with pytest.raises(RewindError):
        policy("rewind", tmp_path, MOST_REWINDS - 1).judge(STEP, metrics(4.0))


def test_update_above_a_limit_is_dropped_on_the_devices() -> None:
    made = bench(job_of())
    batch, loss = made.batch(1), float(made.run(1)[1][0].loss)
    for limit, applied in ((loss + 0.1, True), (loss - 0.1, False)):
        before = made.first
        limits = made.program.on_all_devices(np.array([limit, np.inf], np.float32))
        after, metrics = made.compiled(made.initial(), batch, limits)
        assert bool(metrics.applied) == applied and int(after.step) == 1
        same = [np.array_equal(after.params[name], before.params[name]) for name in before.params]
        assert all(same) != applied and any(same) != applied
