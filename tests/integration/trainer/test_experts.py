"""A mixture of experts computes what each token asks for, and drops what has no room."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

from tests.support.jobs import job_of
from tests.support.model_folders import plan_of
from tests.support.ragged_exchange import ragged_all_to_all
from trainer.contract.planning.parameter_shapes import capacity
from trainer.contract.planning.plan import MoEKind
from trainer.contract.planning.sharding_rules import MESH_AXES
from trainer.data import packing, tokenizer
from trainer.model import Network, grouped_products, moe_exchange
from trainer.model.moe import MoE
from trainer.step import loss as losses

EXPERTS, PER_TOKEN, LENGTH = 4, 2, 8
BIASED = {"biases": "all", "mlp": "clamped_swiglu"}


def model_of(**experts):
    return job_of(model={"moe": {"count": EXPERTS, "top_k": PER_TOKEN, **experts}}).model


def room_of(model):
    assert model.moe
    return capacity(model.moe, LENGTH)


def experts_of(model, kind: MoEKind = "capacity"):
    with nnx.use_eager_sharding(False):
        return MoE(nnx.Rngs(params=0), model, kind)


@pytest.fixture(scope="module")
def x_BSD():  # noqa: N802 an array
    return jax.random.normal(jax.random.key(1), (2, LENGTH, 32))


def by_hand(module, x_BSD, places):
    """Token by token: the experts that still have room, weighted by the router."""
    gate, up, down = (getattr(module, part).kernel[...] for part in ("gate", "up", "down"))
    rows = []
    for x_SD in x_BSD:
        used, tokens = [0] * EXPERTS, []
        chosen, numbers = jax.lax.top_k(x_SD @ module.router.kernel[...], PER_TOKEN)
        for x_D, weights, experts in zip(x_SD, jax.nn.softmax(chosen), numbers, strict=True):
            mixed_D = jnp.zeros_like(x_D)
            for weight, e in zip(weights, experts.tolist(), strict=True):
                if used[e] < places:
                    hidden_F = jax.nn.silu(x_D @ gate[e]) * (x_D @ up[e])
                    mixed_D += weight * (hidden_F @ down[e])
                used[e] += 1
            tokens.append(mixed_D)
        rows.append(jnp.stack(tokens))
    return jnp.stack(rows)


@pytest.mark.parametrize("factor", [None, 1.0, 0.5])
def test_each_token_gets_the_experts_of_its_choice_while_they_have_room(factor, x_BSD):
    model = model_of(capacity_factor=factor)
    module = experts_of(model)
    places = room_of(model)
    assert places == {None: LENGTH, 1.0: 4, 0.5: 2}[factor]
    wanted = by_hand(module, x_BSD, places)
    np.testing.assert_allclose(module(x_BSD)[0], wanted, atol=1e-5)
    if factor is not None:
        assert np.abs(wanted - by_hand(module, x_BSD, LENGTH)).max() > 0.1


@pytest.mark.parametrize("factor", [None, 0.5])
def test_gradients_are_those_by_hand(factor, x_BSD):
    model = model_of(capacity_factor=factor)
    graph, weights = nnx.split(experts_of(model))
    places = room_of(model)

    def ours(weights, x):
        return jnp.sum(jnp.sin(nnx.merge(graph, weights)(x)[0]))

    def theirs(weights, x):
        return jnp.sum(jnp.sin(by_hand(nnx.merge(graph, weights), x, places)))

    found, wanted = (jax.grad(f, argnums=(0, 1))(weights, x_BSD[:1]) for f in (ours, theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, wanted)


@pytest.fixture
def interpreted(monkeypatch) -> None:
    """Runs the kernel for TPUs without one, on few rows, and exchanges rows without TPUs."""
    monkeypatch.setattr(grouped_products, "LEAST_ROWS", 8)
    monkeypatch.setattr(grouped_products, "TILE", (8, 1024, 1024))
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_all_to_all)
    kernel = partial(grouped_products.by_kernel, interpret=True)
    for kind in ("megablox", "megablox_exchange"):
        monkeypatch.setitem(grouped_products.KINDS, kind, kernel)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("kind", "mesh", "keys"),
    [
        pytest.param("ragged", {}, {}, marks=pytest.mark.full),
        pytest.param("ragged", {"fsdp": 2}, {}, marks=pytest.mark.full),
        ("ragged", {"expert": 2, "context": 2}, {}),
        ("ragged", {"fsdp": 2, "expert": 2, "tensor": 2}, {}),
        ("ragged", {"fsdp": 2, "expert": 2, "tensor": 2}, BIASED),
        pytest.param("megablox", {}, {}, marks=pytest.mark.full),
        ("megablox", {"expert": 2, "context": 2}, {}),
        ("megablox", {"fsdp": 2, "expert": 2, "tensor": 2}, BIASED),
        ("megablox_exchange", {"expert": 4}, {}),
        ("megablox_exchange", {"expert": 2, "context": 2}, {}),
        ("megablox_exchange", {"fsdp": 2, "expert": 2, "tensor": 2}, BIASED),
    ],
)
def test_groups_of_rows_give_what_places_for_all_give(kind, mesh, keys, x_BSD):
    wanted, found = on_one_device_and_on_mesh(kind, mesh, keys, x_BSD)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, wanted)


@pytest.mark.usefixtures("interpreted")
def test_rows_beyond_the_places_of_a_device_are_exchanged_later(monkeypatch, x_BSD):
    monkeypatch.setattr(moe_exchange, "exchange_places", lambda devices: 0.25)
    mesh = {"fsdp": 2, "expert": 2}
    wanted, found = on_one_device_and_on_mesh("megablox_exchange", mesh, BIASED, x_BSD)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, wanted)


def on_one_device_and_on_mesh(kind, mesh, keys, x_BSD):
    """Output and gradients with places for all tokens on one device, and of `kind` on a mesh."""
    x_BSD = jnp.concatenate([x_BSD, x_BSD[::-1] + 1])  # a row for each of four devices

    def out_and_gradients(kind):
        graph, weights = nnx.split(experts_of(model_of().model_copy(update=keys), kind))
        # Initial biases are zero.
        weights = jax.tree.map(
            lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size).reshape(x.shape)), weights
        )

        def loss(weights, x_BSD):
            return jnp.sum(jnp.sin(nnx.merge(graph, weights)(x_BSD)[0]))

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(weights, x_BSD)

    wanted = out_and_gradients("capacity")
    sizes = [mesh.get(axis, 1) for axis in MESH_AXES]
    automatic = (AxisType.Auto,) * len(sizes)
    with jax.set_mesh(jax.make_mesh(sizes, MESH_AXES, axis_types=automatic)):
        return wanted, out_and_gradients(kind)


def test_a_sequence_does_not_depend_on_those_beside_it(x_BSD):
    module = experts_of(model_of(capacity_factor=0.5))
    np.testing.assert_allclose(module(x_BSD)[0][1:2], module(x_BSD[1:2])[0], atol=1e-6)


def test_unevenness_is_1_for_equal_experts_and_higher_for_one_with_all(x_BSD):
    module = experts_of(model_of(top_k=1))
    module.router.kernel[...] = jnp.zeros((32, EXPERTS))
    # All experts have the same probability, so it does not matter which one is chosen.
    np.testing.assert_allclose(module(x_BSD)[1].loss, 1.0)
    module.router.kernel[...] = jnp.zeros((32, EXPERTS)).at[:, 0].set(50.0)
    np.testing.assert_allclose(module(jnp.abs(x_BSD))[1].loss, EXPERTS, rtol=1e-4)


def test_balancing_moves_router_and_is_not_in_reported_loss():
    found = [_loss_and_gradient(balance) for balance in (0.0, 1.0)]
    (loss, without), (same, balanced) = found
    np.testing.assert_allclose(loss, same, rtol=1e-6)
    router = "layers.mlp.router.kernel"
    assert np.abs(balanced[router] - without[router]).max() > 1e-3


def _loss_and_gradient(balance):
    job = job_of(model={"moe": {"count": EXPERTS, "load_balance_loss_weight": balance}})
    network = Network.of(job, plan_of(job))
    stream = tokenizer.BYTES.encode(b"import os, and some more text to choose experts for")
    batch = packing.stack([packing.example(stream, 0, None)])

    def loss(params):
        return losses.loss_sum(network.bind(params), batch)

    return jax.jit(jax.value_and_grad(loss))(jax.jit(network.initial)(jnp.uint32(0)))
