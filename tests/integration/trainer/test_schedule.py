"""The learning rates of a run, and what its compiled step does not depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.harness import Bench, bench
from tests.support.jobs import job_of
from trainer.contract.config.job import Job
from trainer.distributed.stop_vote import StopRequest, StopVote
from trainer.step.schedule import learning_rate, schedule_of


def rates_of(job: Job) -> list[float]:
    """The learning rate of each update."""
    is_cosine = job.optimizer.schedule == "cosine"
    schedule = jax.tree.map(jnp.asarray, schedule_of(job))
    rates = learning_rate(schedule, jnp.arange(job.steps), is_cosine=is_cosine)
    return np.asarray(rates).tolist()


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant", "wsd"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 5])
def test_schedules_climb_then_fall_to_their_end(schedule: str, warmup_steps: int) -> None:
    job = job_of(steps=50, optimizer={"schedule": schedule, "warmup_steps": warmup_steps})
    rates, peak = rates_of(job), job.optimizer.learning_rate
    climb = [peak * (n + 1) / warmup_steps for n in range(warmup_steps)]
    assert rates[:warmup_steps] == pytest.approx(climb)
    assert max(rates) == pytest.approx(peak)
    assert rates[-1] == pytest.approx(peak * (1 if schedule == "constant" else 0.1))


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_half_of_a_decay_is_done_after_half_of_the_run(schedule: str) -> None:
    job = job_of(steps=51, optimizer={"schedule": schedule})
    assert rates_of(job)[25] == pytest.approx(0.55 * job.optimizer.learning_rate)


def test_wsd_stays_at_its_rate_until_the_last_steps() -> None:
    job = job_of(steps=50, optimizer={"schedule": "wsd", "warmup_steps": 5, "decay_steps": 10})
    rates, peak = rates_of(job), job.optimizer.learning_rate
    assert rates[4:40] == pytest.approx([peak] * 36)
    assert rates[40:] == pytest.approx([peak * (1 - 0.09 * n) for n in range(1, 11)])


def test_jobs_with_other_steps_and_rates_share_a_step() -> None:
    long = bench(job_of(steps=50, optimizer={"learning_rate": 1e-3}))
    short = bench(job_of(steps=2, optimizer={"learning_rate": 3e-3, "warmup_steps": 2}))
    assert text_of(long) == text_of(short)
    rates = [float(made.run(1)[1][0].learning_rate) for made in (long, short)]
    assert rates == pytest.approx([1e-3, 1.5e-3])


def text_of(made: Bench) -> str:
    """The step before it is compiled, without names of source files."""
    program = made.program
    requests = StopVote(program.mesh).array(StopRequest.NOTHING)
    with jax.set_mesh(program.mesh):
        lowered = program.step_function().lower(
            program.schedule, program.shapes, made.batch(1), requests, program.no_limits
        )
    return lowered.as_text()
