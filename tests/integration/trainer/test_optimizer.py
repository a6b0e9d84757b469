"""What moves the weights: the same on every mesh, kept in checkpoints, as large as planned."""

import math
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib
import pytest
from etils import epath

from tests.support.harness import bench
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.sampling import sampled
from tests.support.saves import Kept
from trainer.analysis import collectives
from trainer.checkpoint.weights import read_params
from trainer.contract.config.loader import ConfigError
from trainer.contract.planning import optimizer_state
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.records import checkpoint_metadata
from trainer.distributed import mesh as meshes
from trainer.step import adafactor, muon, optimizer
from trainer.step import loss as losses
from trainer.step.train_step import TrainProgram

STEPS = 6
ROUNDED: dict[str, Any] = {
    "moments_dtype": "bfloat16",
    "z_loss": 1e-3,
    "param_groups": [{"pattern": "*.scale", "learning_rate_factor": 0.1, "weight_decay": 0.5}],
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw, all options": ROUNDED,
    "lion in bfloat16": {"name": "lion", "moments_dtype": "bfloat16", "learning_rate": 1e-3},
    "muon": {"name": "muon"},
    "adafactor": {"name": "adafactor"},
}
MESHES = {"2x2": {"fsdp": 2, "tensor": 2}, "4x1": {"fsdp": 4}}
SMALL = {"layers": 1, "d_model": 16, "heads": 2, "kv_heads": 2, "d_ff": 32}
SAVED = {"every_steps": 1, "keep": 10}


def _changes(**settings: Any) -> dict[str, Any]:
    # Muon deals two layers out to two devices, and with two layers of zeros to four.
    model = {**SMALL, "layers": 2} if settings.get("name") == "muon" else SMALL
    return {"model": model, "optimizer": {"learning_rate": 3e-3, **settings}, "checkpoint": SAVED}


def _losses(settings: dict[str, Any], devices: int, mesh: dict[str, int]) -> list[float]:
    job = job_of(steps=STEPS, mesh=mesh, **_changes(**settings))
    return [float(metrics.loss) for metrics in bench(job, devices).run(STEPS)[1]]


@pytest.mark.slow
@pytest.mark.parametrize("settings", sampled(OPTIMIZERS, ("muon",)))
def test_losses_do_not_depend_on_the_mesh(settings):
    alone = _losses(settings, 1, {})
    assert alone[-1] < alone[0] - 0.05
    for mesh in MESHES.values():
        np.testing.assert_allclose(_losses(settings, 4, mesh), alone, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", sampled(OPTIMIZERS, ("adamw, all options", "adafactor")))
def test_a_checkpoint_has_the_state_and_another_mesh_takes_it_up(tmp_path, settings):
    changes = {"steps": STEPS, **_changes(**settings)}
    state = Kept.of(tmp_path, 4, mesh=MESHES["2x2"], **changes).saved(2)
    restored = Kept.of(tmp_path, 4, attempt=2, mesh=MESHES["4x1"], **changes).restore()
    assert restored
    jax.tree.map(np.testing.assert_array_equal, restored.state, state)


def _program(devices: int, **changes: Any) -> tuple[TrainProgram, Any]:
    job = job_of(**changes)
    plan = resolve(job, world_of(1, devices), corpus_of(job))
    mesh = meshes.build(plan, jax.devices()[:devices])
    return TrainProgram.of(job, plan, mesh), plan


@pytest.mark.parametrize("ema_decay", [None, 0.9])
@pytest.mark.parametrize(
    ("name", "moments_dtype"),
    [
        *product(["adamw", "lion", "muon"], ["float32", "bfloat16"]),
        ("adafactor", "float32"),
    ],
)
def test_the_state_on_a_device_is_as_large_as_planned(name, moments_dtype, ema_decay):
    settings = {"name": name, "moments_dtype": moments_dtype, "ema_decay": ema_decay}
    mesh = {"fsdp": 2, "tensor": 2}
    program, plan = _program(4, mesh=mesh, optimizer=settings)
    kept, lie = program.shapes, program.shardings
    leaves = jax.tree.leaves((kept.optimizer, kept.average))
    shardings = jax.tree.leaves((lie.optimizer, lie.average))
    held = sum(
        math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, sharding in zip(leaves, shardings, strict=True)
        if leaf.ndim
    )
    assert held == optimizer_state.bytes_per_device(program.job.optimizer, plan)


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_moments_in_bfloat16_lead_to_nearly_the_same_weights(name):
    """After some updates, whose own arithmetic is in float32."""
    moved = []
    for dtype in ("float32", "bfloat16"):
        job = job_of(optimizer={"name": name, "moments_dtype": dtype})
        arrays = resolve(job, world_of(), corpus_of(job)).parameters[:3]
        rule = optimizer.make(job, arrays)
        params = {
            array.name: jax.random.normal(jax.random.key(number), array.shape)
            for number, array in enumerate(arrays)
        }
        state, update = rule.init(params), jax.jit(rule.update)
        for _ in range(3):
            direction, state = update(jax.tree.map(jnp.sin, params), state, params)
            params = jax.tree.map(lambda p, d: p - 0.01 * d, params, direction)
        moved.append(params)
    for one, other in zip(jax.tree.leaves(moved[0]), jax.tree.leaves(moved[1]), strict=True):
        np.testing.assert_allclose(one, other, atol=3e-3)


def test_the_z_loss_is_felt_in_the_gradient_and_not_in_the_loss():
    logits = jax.random.normal(jax.random.key(0), (1, 5, 7)) * 3
    targets = jnp.array([[0, 6, 2, 2, 5]])

    def with_both(logits):
        pull = 0.1 * jax.nn.logsumexp(logits, axis=-1) ** 2
        return jnp.sum(losses.cross_entropy(logits, targets) + pull)

    def ours(logits):
        return jnp.sum(losses.cross_entropy(logits, targets, z_loss=0.1))

    plain = jnp.sum(losses.cross_entropy(logits, targets))
    value, gradient = jax.value_and_grad(ours)(logits)
    assert value == plain
    np.testing.assert_allclose(gradient, jax.grad(with_both)(logits), rtol=1e-5)


def _pulled(*groups: dict[str, Any]) -> dict[str, float]:
    """By how much of itself each parameter is pulled to zero where there is no gradient."""
    job = job_of(model={"biases": "qkv"}, optimizer={"weight_decay": 0.5, "param_groups": groups})
    arrays = resolve(job, world_of(), corpus_of(job)).parameters
    rule = optimizer.make(job, arrays)
    params = {array.name: jnp.ones(array.shape) for array in arrays}
    zeros = jax.tree.map(jnp.zeros_like, params)
    direction: Any = rule.update(zeros, rule.init(params), params)[0]
    return {name: float(step.ravel()[0]) for name, step in direction.items()}


def test_group_has_own_learning_rate_and_decay_first_match_counts():
    pulled = _pulled(
        {"pattern": "embedding.*", "learning_rate_factor": 0.5},
        {"pattern": "layers.*_norm.scale", "weight_decay": 0.25},
        {"pattern": "*.up.kernel", "learning_rate_factor": 0.0},
        {"pattern": "*.kernel", "weight_decay": 0.0},
    )
    assert pulled["embedding.table"] == 0.25
    assert pulled["layers.attention_norm.scale"] == 0.25
    assert pulled["final_norm.scale"] == pulled["layers.attention.query.bias"] == 0
    assert pulled["layers.mlp.up.kernel"] == 0
    assert pulled["layers.attention.query.kernel"] == 0
    assert _pulled()["layers.attention.query.kernel"] == 0.5


@pytest.mark.parametrize(
    ("param_groups", "message"),
    [
        ([{"pattern": "embeding.table"}], "matches no parameter. Did you mean 'embedding.table'?"),
        ([{"pattern": "zzz*"}], "The parameters: embedding.table, layers.attention_norm.scale"),
        ([{"pattern": "*"}, {"pattern": "*.scale"}], "is in earlier groups, which take precedence"),
    ],
)
def test_a_group_without_parameters_is_refused(param_groups, message):
    job = job_of(optimizer={"param_groups": param_groups})
    with pytest.raises(PlanError) as error:
        resolve(job, world_of(), corpus_of(job))
    ((key, said),) = error.value.problems
    assert key == f"optimizer.param_groups.{len(param_groups) - 1}.pattern"
    assert message in said


def test_muon_gives_its_matrices_the_directions_of_optax():
    """Up to the scale, of which there are several customs."""
    job = job_of(optimizer={"name": "muon", "weight_decay": 0.0})
    arrays = resolve(job, world_of(), corpus_of(job)).parameters
    query = next(array for array in arrays if array.name == "layers.attention.query.kernel")
    ours = muon.scale_by_muon(0.95, {"w": query.axes})
    dims = {"w": optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=(2, 3))}
    theirs = optax.contrib.scale_by_muon(beta=0.95, weight_dimension_numbers=dims)
    params = {"w": jnp.zeros(query.shape)}
    grads = {"w": jax.random.normal(jax.random.key(0), query.shape)}
    (one, _), (other, _) = (
        rule.update(grads, rule.init(params), params) for rule in (ours, theirs)
    )
    scale = muon.RMS * query.shape[1] ** 0.5
    np.testing.assert_allclose(one["w"] / scale, other["w"], atol=1e-4)  # type: ignore[index]


def _steps_of(rule: Any, arrays: Any, updates: int = 3) -> Any:
    """Of the last of some updates."""
    state, steps = rule.init(arrays), {}
    for number in range(updates):
        grads = {name: jnp.sin((number + 1) * array) for name, array in arrays.items()}
        steps, state = rule.update(grads, state, arrays)
    return steps


def test_adafactor_gives_a_matrix_the_direction_of_optax():
    ours = adafactor.scale_by_adafactor({"w": ("vocab", "embed"), "b": ("norm",)})
    theirs = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=1), optax.clip_by_block_rms(1.0)
    )
    keys = jax.random.split(jax.random.key(0))
    arrays = {"w": jax.random.normal(keys[0], (12, 8)), "b": jax.random.normal(keys[1], (8,))}
    one, other = (_steps_of(rule, arrays) for rule in (ours, theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), one, other)


def test_padding_rows_do_not_change_adafactor_steps_and_stay_zero():
    rule = adafactor.scale_by_adafactor({"w": ("vocab", "embed")})
    array = jax.random.normal(jax.random.key(0), (12, 8))
    (step, padded) = (
        _steps_of(rule, {"w": jnp.pad(array, ((0, rows), (0, 0)))})["w"] for rows in (0, 20)
    )
    np.testing.assert_allclose(padded[:12], step, rtol=1e-5)
    assert not np.any(padded[12:])


@pytest.mark.parametrize("shape", [(3, 8, 32), (3, 32, 8), (1, 16, 16)])
def test_orthogonal_matrices_have_singular_values_near_one(shape):
    made = muon.orthogonal(jax.random.normal(jax.random.key(0), shape))
    values = np.linalg.svd(np.asarray(made), compute_uv=False)
    assert np.all((values > 0.6) & (values < 1.3)) or shape[1] == shape[2]
    assert values.max() < 1.3


EXCHANGES = {
    "all matrices of a shape together": (1, 2),
    "two by two": (2, 4),
    "each weight by itself": (4, 7),
    "with zeros for two layers": (6, 7),
}
"""How matrices are exchanged -> layers of the model, and exchanges in a step."""


@pytest.mark.parametrize(
    ("layers", "exchanges"), sampled(EXCHANGES, ("two by two", "with zeros for two layers"))
)
def test_muon_moves_each_matrix_to_one_device_and_back(layers, exchanges):
    model = {**SMALL, "layers": layers}
    job = job_of(mesh={"fsdp": 4}, model=model, optimizer={"name": "muon"})
    step = bench(job, 4)
    found = collectives.of(step.text, step.plan)
    kinds = {one.kind: one.count for one in found if one.part == "optimizer"}
    assert kinds.pop("all-to-all") == 2 * exchanges
    assert set(kinds) <= {"all-reduce"}, "the norm of the gradients"


@pytest.mark.slow
def test_another_type_of_moments_is_refused(tmp_path):
    Kept.of(tmp_path, 4, mesh=MESHES["2x2"], steps=STEPS, **_changes(name="muon")).saved(1)
    changes = _changes(**ROUNDED)
    other = Kept.of(tmp_path, 4, attempt=2, mesh=MESHES["2x2"], steps=STEPS, **changes)
    with pytest.raises(ConfigError) as error:
        other.restore()
    assert "optimizer.name: muon -> adamw: the moments of step 1" in str(error.value)
    assert "optimizer.moments_dtype: float32 -> bfloat16: the moments of step 1" in str(error.value)


@pytest.mark.slow
def test_mean_of_weights_follows_them_and_is_exported(tmp_path):
    changes = {"steps": STEPS, "mesh": MESHES["2x2"], **_changes(ema_decay=0.9)}
    kept = Kept.of(tmp_path, 4, **changes)
    mean = jax.device_get(kept.made.initial().params)
    for step in (1, 2, 3):
        state = jax.device_get(kept.made.run(step)[0])
        share = min(0.9, step / (step + 9))
        mean = {n: share * mean[n] + (1 - share) * array for n, array in state.params.items()}
    saved = kept.saved(3)
    for name, array in mean.items():
        np.testing.assert_allclose(saved.weights[name], array, atol=1e-6)
    folder = epath.Path(kept.folder / "3")
    given = read_params(folder, checkpoint_metadata.read(folder), _program(1, model=SMALL)[0])
    jax.tree.map(np.testing.assert_array_equal, given, saved.average)
    assert not np.array_equal(given["embedding.table"], saved.params["embedding.table"])
    restored = kept.restore()
    assert restored
    jax.tree.map(np.testing.assert_array_equal, restored.state, saved)
