"""An evaluation is the mean over the held-out targets, however its batches are cut."""

import jax
import pytest

from tests.support.harness import bench
from tests.support.jobs import job_of
from trainer.evaluation.evaluate import Evaluator
from trainer.telemetry.metrics import Evaluation

BATCHES = 2


def evaluation(grad_accum_steps: int, devices: int = 2) -> Evaluation | None:
    made = bench(job_of(data={"grad_accum_steps": grad_accum_steps}), devices)
    with jax.set_mesh(made.program.mesh):
        params = made.initial().params
        return Evaluator(made.program).evaluate(params, made.loader.validation(BATCHES))


def test_micro_batches_change_nothing() -> None:
    whole, cut = evaluation(1), evaluation(4)
    assert whole
    assert cut
    assert cut.eval_loss == pytest.approx(whole.eval_loss, rel=1e-6)


def test_its_batches_are_cut_as_those_of_training_are() -> None:
    made = bench(job_of(data={"grad_accum_steps": 4}), 2)
    (batch, *_) = made.loader.validation(BATCHES)
    assert batch.tokens.shape == made.batch(1).tokens.shape
