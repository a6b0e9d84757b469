"""Biases that balance experts: they follow the load, on every mesh and through checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.harness import bench
from tests.support.jobs import job_of
from tests.support.model_families import FAMILIES
from tests.support.sampling import sampled
from tests.support.saves import Kept
from trainer.contract.config.model_parts import MixtureOfExperts
from trainer.contract.planning.parameter_shapes import BALANCING_BIASES
from trainer.model.moe_routing import choose
from trainer.step.expert_biases import balanced

MODEL = FAMILIES["deepseek_v3"]
RATE = MODEL["moe"]["bias_update_rate"]
STEPS = 5
MESHES = {
    "tensor": (4, {"fsdp": 2, "tensor": 2}),
    "expert": (4, {"expert": 4}),
    "fsdp, expert, tensor": (8, {"fsdp": 2, "expert": 2, "tensor": 2}),
    "expert, context, tensor": (8, {"expert": 2, "context": 2, "tensor": 2}),
}


def settings_of(**model) -> MixtureOfExperts:
    settings = job_of(model=model).decoder.moe
    assert settings
    return settings


def biases_after(steps, devices=1, **changes):
    state, _ = bench(job_of(model=MODEL, **changes), devices).run(steps)
    return np.asarray(state.params[BALANCING_BIASES])


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_step_moves_biases_by_the_load_of_the_global_batch(micro_batches):
    made = bench(job_of(model=MODEL, data={"grad_accum_steps": micro_batches}))
    first, batch = made.initial(), made.batch(1)
    model = made.program.network.bind(first.params)
    rows = [x.reshape(-1, x.shape[-1]) for x in (batch.tokens, batch.segments, batch.positions)]
    balance = model.features(*rows)[1]
    assert balance and balance.load is not None
    load_LE = np.asarray(balance.load)
    layers, tokens = MODEL["layers"] - MODEL["moe"]["dense_layers"], rows[0].size
    assert load_LE.shape == (layers, MODEL["moe"]["count"])
    np.testing.assert_array_equal(load_LE.sum(1), tokens * MODEL["moe"]["top_k"])
    wanted = RATE * np.sign(load_LE.mean(1, keepdims=True) - load_LE)
    state, _ = made.run(1)
    np.testing.assert_array_equal(state.params[BALANCING_BIASES], np.float32(wanted))


def test_no_gradient_moves_biases():
    made = bench(job_of(model=MODEL))
    with jax.set_mesh(made.program.mesh):
        gradients = made.program.gradient_function()(made.initial(), made.batch(1))
    assert not np.any(gradients[BALANCING_BIASES])


@pytest.mark.parametrize(("devices", "mesh"), sampled(MESHES, ["fsdp, expert, tensor"]))
def test_biases_are_the_same_on_every_mesh(devices, mesh):
    alone = biases_after(STEPS)
    assert np.abs(alone).max() == pytest.approx(STEPS * RATE)
    np.testing.assert_array_equal(biases_after(STEPS, devices, mesh=mesh), alone)


@pytest.mark.full
def test_biases_are_the_same_in_stages():
    model = {**MODEL, "layers": 2, "moe": {**MODEL["moe"], "dense_layers": 0, "dense_d_ff": None}}
    data = {"grad_accum_steps": 2}
    found, alone = (
        bench(job_of(model=model, data=data, mesh=mesh), devices).run(STEPS)[0].params
        for devices, mesh in ((2, {"pipeline": 2}), (1, {}))
    )
    np.testing.assert_array_equal(found[BALANCING_BIASES], alone[BALANCING_BIASES])


@pytest.mark.full
def test_biases_are_restored_on_another_mesh(tmp_path):
    saved = Kept.of(tmp_path, devices=2, model=MODEL).saved(2)
    assert np.any(saved.params[BALANCING_BIASES])
    restored = Kept.of(tmp_path, 4, attempt=2, model=MODEL, mesh={"expert": 4}).restore()
    assert restored
    np.testing.assert_array_equal(
        restored.state.params[BALANCING_BIASES], saved.params[BALANCING_BIASES]
    )


def test_biases_even_out_the_load_of_a_skewed_router():
    job = job_of(model={"moe": {"count": 8, "scores": "sigmoid", "bias_update_rate": 0.01}})
    settings = settings_of(moe=job.decoder.model_dump()["moe"])
    logits_BSE = jax.random.normal(jax.random.key(0), (4, 64, 8)) + jnp.linspace(0, 2, 8)

    @jax.jit
    def update(params):
        load_BE = choose(settings, logits_BSE, params[BALANCING_BIASES][0]).balance.load
        assert load_BE is not None
        load_E = jnp.sum(load_BE, axis=0)
        return balanced(job, params, load_E[None]), load_E

    params, loads = {BALANCING_BIASES: jnp.zeros((1, 8))}, []
    for _ in range(100):
        params, load_E = update(params)
        loads.append(np.asarray(load_E))
    mean = 4 * 64 * settings.top_k / 8
    assert loads[0].max() > 1.8 * mean
    assert loads[-1].max() < 1.1 * mean


def test_weights_do_not_contain_the_biases():
    settings = settings_of(**MODEL)
    logits_BSE = jax.random.normal(jax.random.key(0), (2, 8, settings.count))
    one_group = settings.model_copy(update={"groups": 1, "top_groups": 1})
    bias_E = jnp.zeros(settings.count).at[3].set(9.0)
    found = choose(one_group, logits_BSE, bias_E)
    assert np.all(np.any(found.experts == 3, axis=-1))
    scores_BSk = jnp.take_along_axis(jax.nn.sigmoid(logits_BSE), found.experts, axis=-1)
    wanted = settings.weight_scale * scores_BSk / scores_BSk.sum(-1, keepdims=True)
    np.testing.assert_allclose(found.weights, wanted, rtol=1e-6)


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_experts_come_from_the_best_groups_only(kind):
    settings = settings_of(**FAMILIES[kind])
    size = settings.count // settings.groups
    logits_BSE = jax.random.normal(jax.random.key(0), (2, 8, settings.count))
    bias_E = jnp.zeros(settings.count) if settings.is_biased else None
    experts_BSk = np.asarray(choose(settings, logits_BSE, bias_E).experts)
    scores = np.asarray(jax.nn.sigmoid(logits_BSE) if settings.is_biased else logits_BSE)
    by_group = np.sort(scores.reshape(2, 8, settings.groups, size), axis=-1)
    ranks = by_group.sum(-1) if settings.is_biased else by_group[..., -1]
    best = np.argsort(-ranks, axis=-1)[..., : settings.top_groups]
    for experts_k, groups in zip(experts_BSk.reshape(16, -1), best.reshape(16, -1), strict=True):
        assert set(experts_k // size) <= set(groups)
