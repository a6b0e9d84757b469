"""Direct preference optimization: pairs as examples, and the loss on a mesh."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.harness import bench
from tests.support.preferences import dpo_job
from trainer.evaluation.evaluate import Evaluator

STEPS = 6


def _steps(job: Any, devices: int = 1) -> list[list[float]]:
    """Loss, gradient norm, reward margin and accuracy of each step."""
    return [
        [float(x) for x in (one.loss, one.grad_norm, one.reward_margin, one.reward_accuracy)]
        for one in bench(job, devices).run(STEPS)[1]
    ]


def test_rewards_part_and_every_mesh_computes_the_same(tmp_path: Path) -> None:
    alone = _steps(dpo_job(tmp_path))
    # The model is its reference at first.
    assert alone[0][0] == pytest.approx(np.log(2), abs=1e-6) and alone[0][2] == 0
    assert alone[-1][0] < 0.6 and alone[-1][2] > 0.2 and alone[-1][3] > 0.7
    for mesh in ({"fsdp": 2}, {"fsdp": 1, "tensor": 2}, {"fsdp": 1, "context": 2}):
        np.testing.assert_allclose(_steps(dpo_job(tmp_path, mesh=mesh), 2), alone, atol=1e-4)


def test_accumulation_changes_nothing(tmp_path: Path) -> None:
    whole, parts = (
        _steps(dpo_job(tmp_path, data={"grad_accum_steps": count})) for count in (1, 4)
    )
    np.testing.assert_allclose(parts, whole, atol=1e-5)


def test_validation_loss_is_that_of_pairs_not_trained_on(tmp_path: Path) -> None:
    job = dpo_job(tmp_path, 30, data={"validation_fraction": 0.3})
    made = bench(job)
    with jax.set_mesh(made.program.mesh):
        evaluate = Evaluator(made.program).evaluate
        first = evaluate(made.initial().weights, made.loader.validation(8))
        after = evaluate(made.run(STEPS)[0].weights, made.loader.validation(8))
    assert first and after
    assert first.eval_loss == pytest.approx(np.log(2), abs=1e-6)
    assert after.eval_loss < 0.65
