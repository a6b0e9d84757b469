"""Stages whose passes take turns: the losses of one device, and little kept between the passes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.harness import bench
from tests.support.jobs import job_of
from tests.support.sampling import sampled
from trainer.model.two_passes import two_passes

STEPS = 20
MESHES = {
    "2 stages": (2, {"pipeline": 2}),
    "4 stages": (4, {"pipeline": 4}),
    "2 stages, data": (4, {"pipeline": 2, "data": 2}),
    "2 stages, fsdp": (4, {"pipeline": 2, "fsdp": 2}),
    "2 stages, context": (4, {"pipeline": 2, "context": 2}),
    "2 stages, fsdp, tensor": (8, {"pipeline": 2, "fsdp": 2, "tensor": 2}),
    "4 stages, tensor": (8, {"pipeline": 4, "tensor": 2}),
}
EXPERTS = {"count": 4, "top_k": 2, "load_balance_loss_weight": 0.1}
BALANCED = {"scores": "sigmoid", "bias_update_rate": 1e-2}
KINDS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "windows that alternate, dropout, z-loss": (
        {"model": {"sliding_window": 8, "global_every": 2, "dropout": 0.1},
         "optimizer": {"z_loss": 1e-2}}, {}
    ),
    "learned positions, full remat": (
        {"model": {"positions": "learned", "max_positions": 32, "norm": "layer", "remat": "full",
                   "tied_embeddings": False}}, {"tensor": 2}
    ),
    "experts": ({"model": {"moe": EXPERTS}}, {"expert": 2}),
    "experts, biases, parts of sequences": (
        {"model": {"moe": {**EXPERTS, **BALANCED}}}, {"context": 2}
    ),
    "adapters": (
        {"lora": {"rank": 4, "alpha": 8.0}, "checkpoint": {"init_from": "base"}}, {"fsdp": 2}
    ),
    "muon": ({"optimizer": {"name": "muon", "learning_rate": 1e-3}}, {"fsdp": 2}),
}  # fmt: skip


def _job(micro=4, stages=None, **changes):
    model = {"layers": 4, "remat": "dots", **changes.pop("model", {})}
    mesh = {} if stages is None else {**stages, "pipeline_schedule": "1f1b"}
    return job_of(steps=STEPS, model=model, data={"grad_accum_steps": micro}, mesh=mesh, **changes)


def _assert_same(devices, stages, steps, rtol=1e-5, **changes):
    found = bench(_job(stages=stages, **changes), devices).run(steps)[1]
    alone = bench(_job(**changes)).run(steps)[1]
    for here, there in zip(found, alone, strict=True):
        np.testing.assert_allclose(here.loss, there.loss, rtol=rtol)
        np.testing.assert_allclose(here.grad_norm, there.grad_norm, rtol=100 * rtol)


@pytest.mark.parametrize(("devices", "stages"), sampled(MESHES, ("2 stages, fsdp, tensor",)))
def test_losses_are_those_of_one_device(devices, stages):
    """There are more micro-batches than ticks that one of two stages keeps."""
    _assert_same(devices, stages, STEPS)


@pytest.mark.full
@pytest.mark.parametrize(("stages", "micro"), [(2, 1), (2, 8), (4, 1), (4, 2), (4, 8)])
def test_any_number_of_micro_batches_passes_through_the_stages(stages, micro):
    _assert_same(stages, {"pipeline": stages}, 4, micro=micro)


@pytest.mark.parametrize(
    ("changes", "axes"), sampled(KINDS, ("windows that alternate, dropout, z-loss",))
)
def test_every_kind_of_model_passes_through_the_stages(changes, axes):
    _assert_same(4, {"pipeline": 2, **axes}, 4, micro=2, **changes)


@pytest.mark.full
def test_stages_compute_in_8_bits():
    """Losses agree to 1e-3, as in test_quantized.py."""
    _assert_same(4, {"pipeline": 2, "fsdp": 2}, 4, rtol=1e-3, model={"precision": "int8"})


def test_only_what_depends_on_the_residual_stream_is_kept():
    """Neither weights, whatever their dims became, nor what is computed from a micro-batch."""
    layers, width = 3, 4

    def stage(x_BSD, weights_xDD, mask_BS):
        weights_LDD = weights_xDD.reshape(layers, width, width)
        factors_BS1 = jnp.exp(mask_BS)[..., None]

        def one_layer(x_BSD, weight_DD):
            return jnp.sin(x_BSD @ weight_DD) * factors_BS1, None

        return jax.lax.scan(jax.checkpoint(one_layer), x_BSD, weights_LDD)

    x_BSD, weights_xDD, mask_BS = jnp.ones((2, 5, width)), jnp.ones((12, width)), jnp.ones((2, 5))
    passes = two_passes(stage, jax.eval_shape(lambda: x_BSD), weights_xDD, mask_BS)
    assert [one.shape for one in passes.kept] == [(layers, *x_BSD.shape)]

    result_BSD, _, kept = passes.forward(x_BSD, weights_xDD, mask_BS)
    ones_BSD = jnp.ones_like(result_BSD)
    found = passes.backward(kept, ones_BSD, weights_xDD, mask_BS)
    wanted = jax.vjp(lambda x, w: stage(x, w, mask_BS)[0], x_BSD, weights_xDD)[1](ones_BSD)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
