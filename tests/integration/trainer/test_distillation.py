"""Distillation: the loss, its gradient, the meshes, and runs with a teacher of another run."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import gang
from tests.support.distillations import LARGE, distill_job
from tests.support.harness import Bench, bench
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.saves import Kept, equal
from trainer.analysis.explicit.step import check_step
from trainer.checkpoint.errors import FolderError
from trainer.checkpoint.weights import teacher
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.estimates.flops import flops_per_token
from trainer.contract.estimates.host_memory import host_memory
from trainer.contract.estimates.memory import footprint
from trainer.contract.planning.planner import resolve
from trainer.contract.records.teacher import teacher_model
from trainer.data.packing import Batch
from trainer.model import Params
from trainer.step import loss
from trainer.step.micro_batch import micro_batch_loss
from trainer.tools.export_checkpoint import export_hugging_face
from trainer.tools.step_examples import explain

STEPS = 20
VOCABULARY = 257


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a larger model and its checkpoints."""
    run_dir = tmp_path_factory.mktemp("large")
    Kept.of(run_dir, 1, model=LARGE, seed=5, optimizer={"learning_rate": 1e-2}).saved(3)
    return run_dir


def _loss_and_gradients(made: Bench, params: Params, micro: Batch) -> tuple[jax.Array, Params]:
    program, of_teacher = made.program, made.first.teacher

    def mean_loss(params: Params) -> jax.Array:
        total, counts = micro_batch_loss(
            program.network, params, micro, jnp.int32(0), program.teacher, of_teacher
        )
        return total / counts.targets

    with jax.set_mesh(program.mesh):
        return jax.jit(jax.value_and_grad(mean_loss))(params)


def _reference(made: Bench, params: Params, micro: Batch) -> tuple[jax.Array, Params]:
    """The same with whole arrays of logits and of probabilities."""
    program, settings = made.program, made.program.job.distill
    assert program.teacher and settings and made.first.teacher

    def whole_logits(model: Any) -> jax.Array:
        features_BSD, _ = model.features(micro.tokens, micro.segments, micro.positions)
        return model.logits(features_BSD)[..., :VOCABULARY]

    theirs_BSV = whole_logits(program.teacher.network.bind(made.first.teacher))

    def mean_loss(params: Params) -> jax.Array:
        ours_BSV = whole_logits(program.network.bind(params))
        hot, cold = settings.temperature, 1.0
        logs = {
            name: jax.nn.log_softmax(x / by)
            for name, x, by in (
                ("ours", ours_BSV, hot),
                ("theirs", theirs_BSV, hot),
                ("plain", ours_BSV, cold),
            )
        }
        soft_BS = jnp.sum(jnp.exp(logs["theirs"]) * (logs["theirs"] - logs["ours"]), axis=-1)
        hard_BS = -jnp.take_along_axis(logs["plain"], micro.targets[..., None], axis=-1)[..., 0]
        both_BS = settings.weight * hot**2 * soft_BS + (1 - settings.weight) * hard_BS
        return jnp.sum(both_BS * micro.weights) / jnp.sum(micro.weights)

    return jax.jit(jax.value_and_grad(mean_loss))(params)


def _micro(made: Bench) -> Batch:
    return jax.tree.map(lambda x: np.asarray(x)[0], made.batch(1))


@pytest.mark.parametrize("settings", [{}, {"weight": 1.0, "temperature": 0.5}], ids=str)
def test_loss_and_gradients_are_those_of_whole_arrays(
    large: Path, settings: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(distill_job(large, distill=settings))
    micro = _micro(made)
    monkeypatch.setattr(loss, "LOGIT_BYTES", 16 * 2 * 4 * 384)
    tokens = micro.tokens.size
    assert loss.chunk_count(tokens, 2 * made.plan.padded_vocab) >= 16
    found, gradients = _loss_and_gradients(made, made.first.params, micro)
    wanted, wanted_gradients = _reference(made, made.first.params, micro)
    assert found == pytest.approx(float(wanted), rel=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, wanted_gradients[name], rtol=1e-3, atol=1e-6)


def test_a_model_equal_to_its_teacher_has_nothing_to_learn(large: Path) -> None:
    made = bench(distill_job(large, model=LARGE, distill={"weight": 1.0}))
    assert made.first.teacher
    found, gradients = _loss_and_gradients(made, made.first.teacher, _micro(made))
    assert found == pytest.approx(0, abs=1e-6)
    assert max(float(jnp.max(jnp.abs(x))) for x in gradients.values()) < 1e-6
    assert _loss_and_gradients(made, made.first.params, _micro(made))[0] > 1e-3


def _losses(job: Job, devices: int) -> list[float]:
    return [float(one.loss) for one in bench(job, devices).run(STEPS)[1]]


def test_every_mesh_computes_the_same_losses(large: Path) -> None:
    alone = _losses(distill_job(large), 1)
    assert alone[-1] < 0.95 * alone[0]
    for changes in (
        {"mesh": {"data": 2, "fsdp": 2}, "data": {"grad_accum_steps": 2}},
        {"mesh": {"data": 1, "fsdp": 4}},
        {"mesh": {"data": 1, "fsdp": 2, "tensor": 2}},
    ):
        np.testing.assert_allclose(_losses(distill_job(large, **changes), 4), alone, rtol=2e-4)


@pytest.mark.full
def test_experts_learn_from_experts(tmp_path: Path) -> None:
    experts = {"moe": {"count": 4, "top_k": 2}}
    Kept.of(tmp_path, 1, model={**LARGE, **experts}).saved(1)
    alone, split = (
        bench(distill_job(tmp_path, model=experts, mesh=mesh), devices).run(3)[1]
        for mesh, devices in (({}, 1), ({"expert": 2}, 2))
    )
    found = [[float(one.loss) for one in metrics] for metrics in (alone, split)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4)


def test_the_teacher_is_in_shards_that_the_plan_counts(large: Path) -> None:
    job = distill_job(large, model={"compute_dtype": "bfloat16"}, mesh={"fsdp": 2, "tensor": 2})
    made = bench(job, 4)
    state = made.initial()

    def held(tree: Any) -> int:
        return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree) if x.ndim)

    assert held(state.teacher) == made.plan.teacher_bytes > 0
    assert footprint(job, made.plan).state == held((state.weights, state.optimizer, state.teacher))
    alone = job.model_copy(update={"distill": None})
    plans = [(job, made.plan), (alone, resolve(alone, made.plan.world, corpus_of(job)))]
    arrays = [host_memory(one, plan, may_shrink=False).peak.parts["arrays"] for one, plan in plans]
    assert arrays[0] - arrays[1] == 4 * made.plan.teacher_bytes
    assert check_step(job, made.plan).stopped == ""


def test_the_teacher_costs_a_forward_pass(large: Path) -> None:
    def flops(job: Job) -> float:
        plan = resolve(job, world_of(), corpus_of(job), read_teacher=teacher_model)
        return flops_per_token(job, plan)

    job = distill_job(large)
    alone, of_teacher = job_of(), job_of(model=LARGE)
    assert flops(job) == pytest.approx(flops(alone) + flops(of_teacher) / 3, rel=1e-9)


def test_other_weights_than_at_the_start_are_refused(large: Path, tmp_path: Path) -> None:
    program = bench(distill_job(large)).program
    found = teacher(str(large), program)
    again = teacher(str(large / "checkpoints" / "3"), program, found.base)
    assert again.base == found.base and equal(again.params, found.params)
    Kept.of(tmp_path, 1, model=LARGE, seed=6).saved(1)
    with pytest.raises(FolderError, match=r"distill\.teacher: .* does not have the weights"):
        teacher(str(tmp_path), program, found.base)


def test_an_exported_teacher_teaches_as_the_run_that_it_comes_from(
    large: Path, tmp_path: Path
) -> None:
    export_hugging_face(large / "checkpoints" / "3", tmp_path / "out")
    exported = distill_job(tmp_path / "out", mesh={"fsdp": 2})
    found, wanted = _losses(exported, 2), _losses(distill_job(large, mesh={"fsdp": 2}), 2)
    assert found == wanted


def test_the_examples_of_a_step_are_not_ranked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="distill: the loss of a target is not"):
        explain(tmp_path, distill_job(tmp_path), 1, 1)


@pytest.mark.full
@pytest.mark.slow
def test_a_run_learns_resumes_elsewhere_and_keeps_its_teacher(tmp_path: Path) -> None:
    large, run_dir = tmp_path / "large", tmp_path / "small"
    saves = {"checkpoint": {"every_steps": 2, "keep": 10}}
    taught = gang.run(job_of(model=LARGE, **saves), world_of(), large)
    assert taught.codes == [0], taught.outputs
    job = distill_job(large, steps=6, eval={"every_steps": 3, "batches": 1}, **saves)
    whole = gang.run(job, world_of(), tmp_path / "whole")
    assert whole.codes == [0], whole.outputs
    gang.run(job.model_copy(update={"stop_after_step": 4}), world_of(2, 1), run_dir)
    resumed = gang.run(job, world_of(1, 4), run_dir, attempt=2)
    assert resumed.codes == [0], resumed.outputs
    np.testing.assert_allclose(resumed.losses(), whole.losses(), rtol=1e-4)
    about = json.loads((run_dir / "checkpoints" / "6" / "about.json").read_text())
    assert about["teacher"]["step"] == 3 and set(about["arrays"]) == set(
        json.loads((tmp_path / "whole" / "checkpoints" / "6" / "about.json").read_text())["arrays"]
    )
    assert any("learning from the teacher in" in text for text in resumed.outputs)
    Kept.of(tmp_path / "other", 1, model=LARGE, seed=6).saved(1)
    other = distill_job(tmp_path / "other", steps=8, **saves)
    refused = gang.run(other, world_of(), run_dir, attempt=3)
    assert refused.codes == [64] and "does not have the weights" in refused.outputs[0]
