"""One update: compiled once, weighted by tokens, refused where it is not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

from tests.support.harness import bench
from tests.support.jobs import job_of
from trainer.distributed import stop_vote
from trainer.distributed.stop_vote import StopRequest, StopVote
from trainer.step import compiler_options
from trainer.step.bookkeeping import digest


def test_option_unknown_to_compiler_is_omitted_and_reported():
    options = {"xla_of_another_version": "true", "xla_backend_optimization_level": "0"}
    lowered = jax.jit(lambda x: x + 1).lower(1.0)
    with pytest.warns(UserWarning, match="compiling without xla_of_another_version"):
        assert compiler_options.compiled(lowered, options)(1.0) == 2.0
    options.update(xla_backend_optimization_level="low")
    del options["xla_of_another_version"]
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_backend_optimization_level"):
        compiler_options.compiled(lowered, options)


def test_twenty_steps_compile_once():
    made = bench(job_of(steps=20, mesh={"fsdp": 2, "tensor": 2}), devices=4)
    state, batches = made.initial(), made.loader.training(1)
    ready = [next(batches) for _ in range(20)]
    nothing = StopVote(made.program.mesh).array(StopRequest.NOTHING)
    compiled = []

    def count(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    step = made.program.step_function()
    schedule, no_limits = made.program.schedule, made.program.no_limits
    monitoring.register_event_duration_secs_listener(count)
    try:
        with jax.set_mesh(made.program.mesh):
            for batch in ready:
                state, _ = step(schedule, state, batch, nothing, no_limits)
            jax.block_until_ready(state)
    finally:
        monitoring.unregister_event_duration_listener(count)
    assert len(compiled) == 1


def test_the_step_on_cpu_devices_has_no_products_of_ynnpack(monkeypatch: pytest.MonkeyPatch):
    """The XLA flags of these tests exclude them; here they are XLA's default again."""
    default: dict[str, str | bool] = {
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"
    }
    compiled = compiler_options.compiled
    monkeypatch.setattr(
        compiler_options, "compiled", lambda lowered, options: compiled(lowered, default | options)
    )
    product = jax.jit(jnp.dot).lower(jnp.ones((64, 64)), jnp.ones((64, 64)))
    assert "__ynn_fusion" in (product.compile(default).as_text() or "")
    made = bench(job_of())
    step = made.program.compiled_step(made.batch(1)).as_text()
    assert step
    assert "__ynn_fusion" not in step


def test_uneven_micro_batches_make_the_step_of_one_batch():
    whole, parts = (
        bench(job_of(data={"global_batch": 8, "grad_accum_steps": count})) for count in (1, 4)
    )
    batch = whole.batch(1)
    # The first rows count few targets, the last ones all: parts of very different weight.
    weights = (np.arange(32) < np.arange(1, 9)[:, None] * 4).astype(np.float32)
    states = []
    for made, micro in ((whole, 1), (parts, 4)):
        cut = jax.tree.map(lambda x, m=micro: np.asarray(x).reshape(m, -1, *x.shape[2:]), batch)
        cut = cut._replace(weights=weights.reshape(micro, -1, 32))
        states.append(made.compiled(made.initial(), cut))
    (one, one_metrics), (many, many_metrics) = states
    np.testing.assert_allclose(one_metrics.loss, many_metrics.loss, rtol=1e-6)
    np.testing.assert_allclose(one_metrics.grad_norm, many_metrics.grad_norm, rtol=1e-5)
    assert float(one_metrics.tokens) == weights.sum()
    for name, array in one.params.items():
        np.testing.assert_allclose(array, many.params[name], atol=3e-5, err_msg=name)


@pytest.mark.parametrize("offload_moments", [False, True])
def test_an_update_that_is_not_finite_is_not_applied(offload_moments):
    made = bench(job_of(optimizer={"offload_moments": offload_moments}))
    state = made.initial()
    before = jax.device_get(state)
    batch = made.batch(1)
    broken = batch._replace(weights=batch.weights * jnp.float32(np.nan))
    after, metrics = made.compiled(state, broken)
    assert not metrics.applied
    _only_the_step_number_differs(before, jax.device_get(after))


def _only_the_step_number_differs(before, after):
    assert after.step == before.step + 1
    jax.tree.map(np.testing.assert_array_equal, before, after._replace(step=before.step))


def test_the_digest_of_examples_ignores_their_order():
    numbers = jnp.arange(16)
    assert digest(numbers) == digest(numbers[::-1])
    assert digest(numbers) != digest(numbers.at[0].set(99))


@pytest.mark.parametrize("mesh", [{}, {"tensor": 2}], ids=["fsdp 4", "fsdp 2, tensor 2"])
def test_a_step_says_the_largest_wish_of_any_device_and_all_examples_once(mesh):
    made = bench(job_of(mesh=mesh), 4)
    batch = made.batch(1)
    requests = jax.device_put(
        jnp.array(
            [StopRequest.NOTHING, StopRequest.STOP, StopRequest.SAVE, StopRequest.NOTHING],
            jnp.int32,
        ),
        stop_vote.sharding(made.program.mesh),
    )
    step = made.program.compiled_step(batch)
    program = made.program
    _, metrics = step(program.schedule, made.initial(), batch, requests, program.no_limits)
    assert metrics.request == StopRequest.STOP
    assert metrics.examples == digest(jax.device_get(batch.examples))


def test_weight_decay_leaves_norms_out():
    made = bench(job_of(optimizer={"weight_decay": 0.5}))
    params = made.initial().params
    zeros = jax.tree.map(jnp.zeros_like, params)
    rule = made.program.rule
    updates, _ = jax.jit(lambda p, z: rule.update(z, rule.init(p), p))(params, zeros)
    decayed = {name for name, update in updates.items() if np.any(np.asarray(update))}
    assert decayed == {name for name in params if not name.endswith("norm.scale")}


def test_lion_moves_every_weight_by_the_rate_alone():
    """Its direction is a sign: whatever the gradient's size, before any decay."""
    made = bench(job_of(optimizer={"name": "lion", "weight_decay": 0.0, "schedule": "constant"}))
    state, metrics = made.run(1)
    rate = float(metrics[0].learning_rate)
    for name, before in made.first.params.items():
        moved = np.abs(np.asarray(state.params[name]) - np.asarray(before))
        assert np.all(np.isclose(moved, rate, rtol=1e-2) | (moved == 0)), name


def test_gradients_are_clipped_to_the_norm():
    made = bench(job_of(optimizer={"clip_norm": 1e-9, "weight_decay": 0.0, "eps": 1.0}))
    state, metrics = made.run(1)
    assert metrics[0].grad_norm > 1e-3
    # With an eps of 1 Adam moves by about rate * gradient: nothing, after clipping.
    moved = jax.tree.map(
        lambda new, old: np.max(np.abs(new - old)), state.params, made.first.params
    )
    assert max(moved.values()) < 1e-7
