"""Direct preference optimization: pairs as examples, and the loss on a mesh."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support import gang, reference_dpo
from tests.support.chats import write
from tests.support.harness import bench
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.model_families import FAMILIES
from tests.support.model_folders import loaded
from tests.support.preferences import dpo_job
from tests.support.reference_logits import CONFIGS, weights
from tests.support.saves import Kept
from trainer.contract.config.job import Job
from trainer.contract.estimates.flops import flops_per_token
from trainer.contract.planning.lora import A, B
from trainer.contract.planning.planner import resolve
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.data.packing import CHOSEN, Batch
from trainer.evaluation.evaluate import Evaluator
from trainer.hugging_face.tensor_layout import layouts
from trainer.hugging_face.tensor_map import ATTENTION, MLP_KERNELS

STEPS = 6
REFERENCE = json.loads(Path(__file__).with_name("reference_dpo.json").read_text())
MODULES = {
    **{f"layers.attention.{ours}": f"self_attn.{theirs}" for ours, theirs in ATTENTION.items()},
    **{f"layers.mlp.{ours}": f"mlp.{theirs}" for ours, theirs in MLP_KERNELS.items()},
}
RANK = reference_dpo.RANK
SHAPES = {"d_model": 16, "d_ff": 24, "heads": 4, "kv_heads": 2, "head_dim": 8, "vocab_size": 257}
"""Those of `reference_logits.py`."""


def _steps(job: Job, devices: int = 1) -> np.ndarray:
    """Loss, gradient norm, reward margin and accuracy of each step, (steps, 4)."""
    made: list[Any] = bench(job, devices).run(STEPS)[1]
    return np.array(
        [[one.loss, one.grad_norm, one.reward_margin, one.reward_accuracy] for one in made]
    )


def test_rewards_part_and_every_mesh_computes_the_same(tmp_path: Path) -> None:
    alone = _steps(dpo_job(tmp_path))
    # The model is its reference at first.
    assert alone[0][0] == pytest.approx(np.log(2), abs=1e-6) and alone[0][2] == 0
    assert alone[-1][0] < 0.6 and alone[-1][2] > 0.2 and alone[-1][3] > 0.7
    for mesh in ({"fsdp": 2}, {"fsdp": 1, "tensor": 2}, {"fsdp": 1, "context": 2}):
        np.testing.assert_allclose(_steps(dpo_job(tmp_path, mesh=mesh), 2), alone, atol=1e-4)


def test_accumulation_changes_nothing(tmp_path: Path) -> None:
    whole, parts = (_steps(dpo_job(tmp_path, data={"grad_accum_steps": count})) for count in (1, 4))
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


def test_the_reference_costs_a_forward_pass(tmp_path: Path) -> None:
    job = dpo_job(tmp_path)
    adapted = job.model_copy(update={"dpo": None, "data": job_of(data={"seq_len": 64}).data})
    plain = adapted.model_copy(update={"lora": None})
    jobs = (job, adapted, plain)
    flops = [flops_per_token(one, resolve(one, world_of(), corpus_of(one))) for one in jobs]
    assert flops[0] == pytest.approx(flops[1] + flops[2] / 3, rel=1e-9)


@pytest.mark.full
@pytest.mark.slow
def test_two_processes_train_on_pairs_and_report_rewards(tmp_path: Path) -> None:
    Kept.of(tmp_path / "base", 1).saved(1)
    job = dpo_job(
        tmp_path,
        30,
        steps=4,
        data={"validation_fraction": 0.2},
        checkpoint={"every_steps": 2, "init_from": str(tmp_path / "base")},
        eval={"every_steps": 2, "batches": 1},
    )
    pair, alone = (
        gang.run(job, world_of(count, 1), tmp_path / f"{count}-processes") for count in (2, 1)
    )
    assert (pair.codes, alone.codes) == ([0, 0], [0]), "\n".join(pair.outputs + alone.outputs)
    np.testing.assert_allclose(pair.losses(), alone.losses(), atol=1e-4)
    steps = [line for line in pair.lines() if "loss" in line]
    assert steps[0]["reward_margin"] == 0
    assert steps[-1]["reward_margin"] > 0 and 0 <= steps[-1]["reward_accuracy"] <= 1
    evaluations = [line for line in pair.lines() if "eval_loss" in line]
    assert len(evaluations) == 2 and "eval_perplexity" not in evaluations[0]
    assert any("step 4/4  eval_loss" in output for output in pair.outputs)


def test_loss_and_gradients_are_those_of_trl(tmp_path: Path) -> None:
    plain = job_of(model={**FAMILIES["llama"], **SHAPES})
    job = dpo_job(
        tmp_path,
        model=plain.model.model_dump(),
        dpo={"beta": reference_dpo.BETA},
        lora={"rank": RANK, "alpha": reference_dpo.ALPHA},
        data={
            "path": write(tmp_path / "trl.jsonl", *reference_dpo.PAIRS),
            "global_batch": len(reference_dpo.PAIRS),
        },
    )
    made = bench(job)
    batch = made.batch(1)
    assert sorted(_texts(batch, CHOSEN)) == sorted(REFERENCE["chosen"])
    assert sorted(_texts(batch, CHOSEN + 1)) == sorted(REFERENCE["rejected"])
    base = loaded(_reference_folder(tmp_path / "base", plain), plain)
    adapters = {one.name: _from_theirs(one.name, one.shape) for one in made.plan.trained}
    state = made.program.fresh_state(jax.tree.map(jnp.asarray, {**base, **adapters}))
    with jax.set_mesh(made.program.mesh):
        gradients = jax.device_get(made.program.gradient_function()(state, batch))
        metrics = jax.device_get(made.compiled(state, batch)[1])
    for key in ("loss", "reward_margin", "reward_accuracy"):
        assert float(getattr(metrics, key)) == pytest.approx(REFERENCE[key], abs=1e-4)
    names = [name for ours in gradients for name in _their_names(ours)]
    assert sorted(names) == sorted(REFERENCE["gradients"])
    for ours, gradient in gradients.items():
        for name, layer in zip(_their_names(ours), gradient, strict=True):
            matrix = layer.reshape((-1, RANK) if ours.endswith(A) else (RANK, -1))
            mean = matrix.T.flatten()[::5] / len(reference_dpo.PAIRS)
            wanted = REFERENCE["gradients"][name]
            np.testing.assert_allclose(mean, wanted, rtol=0, atol=1e-4, err_msg=name)


def _texts(batch: Batch, segment: int) -> list[list[int]]:
    """The tokens of each pair's chosen or rejected text, with the separator that ends it."""
    found = []
    arrays = (np.asarray(x[0]) for x in (batch.tokens, batch.targets, batch.segments))
    for tokens, targets, segments in zip(*arrays, strict=True):
        inside = segments == segment
        found.append([*tokens[inside].tolist(), int(targets[inside][-1])])
    return found


def _reference_folder(folder: Path, job: Job) -> Path:
    """A Hugging Face folder with the base model of the reference."""
    folder.mkdir()
    found = layouts(job.decoder, vocab_size(job))
    shapes = {name: layout.tensor_shape for layout in found for name in layout.tensors}
    tensors = {name: weights(name, shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": "llama", **CONFIGS["llama"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _their_names(ours: str) -> list[str]:
    """PEFT's names of one of our adapter matrices, one for each layer."""
    end, theirs = (A, "A") if ours.endswith(A) else (B, "B")
    module = MODULES[ours.removesuffix(end)]
    return [f"model.layers.{layer}.{module}.lora_{theirs}.weight" for layer in range(2)]


def _from_theirs(ours: str, shape: tuple[int, ...]) -> np.ndarray:
    """The reference's numbers of an adapter matrix, whose tensors have outputs first."""
    rank, layers = RANK, shape[0]
    width = int(np.prod(shape)) // rank // layers
    theirs = (rank, width) if ours.endswith(A) else (width, rank)
    found = [weights(name, theirs).T for name in _their_names(ours)]
    return (reference_dpo.LORA_SIZE * np.stack(found)).reshape(shape).astype(np.float32)
