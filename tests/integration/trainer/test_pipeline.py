"""Layers in stages: the losses of one device, on any number of stages and any other axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.harness import bench
from tests.support.jobs import job_of
from tests.support.sampling import sampled
from tests.support.saves import Kept, equal
from trainer.contract.config.eval import Sample
from trainer.data.tokenizer import BYTES
from trainer.evaluation import generate
from trainer.evaluation.evaluate import Evaluator
from trainer.model.pipeline_rounds import of_round
from trainer.step.loss import loss_sum

STEPS = 20
LAYERS, MICRO = 4, 2
MESHES = {
    "2 stages": (2, {"pipeline": 2}),
    "4 stages": (4, {"pipeline": 4}),
    "2 stages, data": (4, {"pipeline": 2, "data": 2}),
    "2 stages, fsdp": (4, {"pipeline": 2, "fsdp": 2}),
    "2 stages, tensor": (4, {"pipeline": 2, "tensor": 2}),
    "2 stages, context": (4, {"pipeline": 2, "context": 2}),
    "2 stages, fsdp, tensor": (8, {"pipeline": 2, "fsdp": 2, "tensor": 2}),
    "4 stages, tensor": (8, {"pipeline": 4, "tensor": 2}),
    "2 stages, 2 rounds": (2, {"pipeline": 2, "pipeline_rounds": 2}),
    "2 stages, 2 rounds, fsdp": (4, {"pipeline": 2, "pipeline_rounds": 2, "fsdp": 2}),
    "2 stages, 2 rounds, data, context": (
        8, {"pipeline": 2, "pipeline_rounds": 2, "data": 2, "context": 2}
    ),
    "2 stages, 2 rounds, fsdp, tensor": (
        8, {"pipeline": 2, "pipeline_rounds": 2, "fsdp": 2, "tensor": 2}
    ),
}  # fmt: skip
ALWAYS = ("4 stages", "2 stages, 2 rounds, fsdp, tensor")
ROUNDS = {"pipeline": 2, "pipeline_rounds": 2}
STAGED = sampled({"4 stages": (4, {"pipeline": 4}), "2 rounds": (2, ROUNDS)}, ("2 rounds",))
MOVES = {
    "2 stages to 1": ({"pipeline": 2}, 1, {}),
    "2 stages to 4": ({"pipeline": 2}, 4, {"pipeline": 4}),
    "2 stages to 2 rounds": ({"pipeline": 2}, 4, {**ROUNDS, "fsdp": 2}),
    "2 rounds to 1": (ROUNDS, 1, {}),
    "2 rounds to 4 stages": (ROUNDS, 4, {"pipeline": 4}),
}
EXPERTS = {"moe": {"count": 4, "top_k": 2, "load_balance_loss_weight": 0.1}}
MODELS = {
    "windows that alternate, dropout": (
        {"sliding_window": 8, "global_every": 2, "dropout": 0.1, "remat": "dots"}, {}
    ),
    "learned positions, full remat": (
        {"positions": "learned", "max_positions": 32, "norm": "layer", "remat": "full",
         "tied_embeddings": False}, {}
    ),
    "experts": (EXPERTS, {"expert": 2}),
    "experts, parts of sequences": (EXPERTS, {"context": 2}),
    "experts in rounds, dropout": (
        {**EXPERTS, "dropout": 0.1, "remat": "dots"}, {"pipeline_rounds": 2, "expert": 2}
    ),
}  # fmt: skip
OPTIMIZERS = ("muon", "adafactor")


def _job(**changes):
    is_in_rounds = "pipeline_rounds" in changes.get("mesh", {})
    remat = {"remat": "dots"} if is_in_rounds else {}
    model = {"layers": LAYERS, **remat, **changes.pop("model", {})}
    data = {"grad_accum_steps": MICRO, **changes.pop("data", {})}
    return job_of(steps=STEPS, model=model, data=data, **changes)


def _same(one, other):
    for here, there in zip(one, other, strict=True):
        np.testing.assert_allclose(here.loss, there.loss, rtol=1e-5)
        np.testing.assert_allclose(here.grad_norm, there.grad_norm, rtol=1e-3)


@pytest.mark.parametrize(("devices", "mesh"), sampled(MESHES, ALWAYS))
def test_losses_are_those_of_one_device(devices, mesh):
    found = bench(_job(mesh=mesh), devices).run(STEPS)[1]
    _same(found, bench(_job()).run(STEPS)[1])


@pytest.mark.full
@pytest.mark.parametrize("rounds", [1, 2])
def test_losses_of_four_stages_do_not_depend_on_the_rounds(rounds):
    sizes = {"model": {"layers": 8}, "data": {"grad_accum_steps": 8}}
    found = bench(_job(mesh={"pipeline": 4, "pipeline_rounds": rounds}, **sizes), 4).run(4)[1]
    _same(found, bench(_job(**sizes)).run(4)[1])


@pytest.mark.parametrize(("model", "mesh"), sampled(MODELS, ("windows that alternate, dropout",)))
def test_every_kind_of_layer_passes_through_stages(model, mesh):
    mesh = {"pipeline": 2, **mesh}
    found = bench(_job(model=model, mesh=mesh), 4).run(4)[1]
    _same(found, bench(_job(model=model)).run(4)[1])


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("mesh", [{"pipeline": 2}, ROUNDS])
def test_moments_lie_on_the_stage_of_their_layer(name, mesh):
    optimizer = {"name": name, "learning_rate": 1e-3}
    found = bench(_job(optimizer=optimizer, mesh=mesh), 4).run(4)[1]
    _same(found, bench(_job(optimizer=optimizer)).run(4)[1])


def test_a_stage_has_only_its_own_layers_and_its_part_of_the_vocabulary():
    made = bench(_job(mesh={"pipeline": 4}), 4)
    params = made.initial().params
    for name, array in params.items():
        (shard, *_) = array.addressable_shards
        parts = 4 if name.startswith("layers.") or name == "embedding.table" else 1
        assert shard.data.size * parts == array.size, name


def test_stages_in_rounds_have_their_layers_in_place():
    """Two stages of two rounds have every other layer of four."""
    array = bench(_job(mesh=ROUNDS), 2).initial().params["layers.mlp.up.kernel"]
    in_order = bench(_job()).initial().params["layers.mlp.up.kernel"]
    for stage, shard in enumerate(array.addressable_shards):
        np.testing.assert_allclose(np.squeeze(shard.data, 1), in_order[stage::2], rtol=1e-6)


def test_no_tick_keeps_a_copy_of_its_weights():
    """The backward pass takes them from the weights of all rounds again."""
    layers, width = 3, 4

    def one_layer(x_BSD, weight_DD):
        return jnp.tanh(x_BSD @ weight_DD), None

    def stage(x_BSD, weights_LDD, _):
        return jax.lax.scan(jax.checkpoint(one_layer), x_BSD, weights_LDD)

    def second_round(x_BSD, weights_cLDD):
        return of_round(stage, 2)(x_BSD, weights_cLDD, jnp.int32(1), None)[0]

    weights_cLDD = jnp.ones((2, layers, width, width))
    _, backward = jax.vjp(second_round, jnp.ones((1, 5, width)), weights_cLDD)
    kept = [leaf.shape for leaf in jax.tree.leaves(backward)]
    assert weights_cLDD.shape in kept
    assert (layers, width, width) not in kept


def test_layers_in_rounds_are_applied_in_order_without_stages():
    """A check of hosts computes the whole model on each of them."""
    staged, alone = bench(_job(mesh=ROUNDS), 2), bench(_job())
    found, wanted = (
        loss_sum(
            one.program.network.bind(jax.device_get(one.initial().params)),
            jax.tree.map(lambda x: np.asarray(x)[0], one.batch(1)),
        )
        for one in (staged, alone)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize(("devices", "mesh"), STAGED)
def test_an_evaluation_passes_through_the_stages_too(devices, mesh):
    def evaluation(made):
        with jax.set_mesh(made.program.mesh):
            batches = made.loader.validation(1)
            return Evaluator(made.program).evaluate(made.initial().params, batches)

    staged, alone = evaluation(bench(_job(mesh=mesh), devices)), evaluation(bench(_job()))
    assert staged and alone
    assert staged.eval_loss == pytest.approx(alone.eval_loss, rel=1e-5)


@pytest.mark.parametrize(("devices", "mesh"), STAGED)
def test_text_is_written_by_the_stages_in_turn(monkeypatch, devices, mesh):
    """The weights stay where they are, as those of a large model do."""

    def tokens(made):
        with jax.set_mesh(made.program.mesh):
            settings = Sample(prompt="def ", tokens=4, temperature=0.0)
            return generate.Sampler(made.program, settings, BYTES).tokens(made.initial().params)

    alone = tokens(bench(_job()))
    monkeypatch.setattr(generate, "ONE_DEVICE_BYTES", 0)
    staged = tokens(bench(_job(mesh=mesh), devices))
    np.testing.assert_array_equal(staged, alone)


@pytest.mark.parametrize(("saved_on", "devices", "mesh"), sampled(MOVES, ("2 rounds to 1",)))
def test_checkpoint_goes_on_with_other_stages_and_rounds(tmp_path, saved_on, devices, mesh):
    model, data = {"layers": LAYERS, "remat": "dots"}, {"grad_accum_steps": MICRO}
    before = Kept.of(tmp_path, 2, model=model, data=data, mesh=saved_on)
    state = before.saved(2)
    after = Kept.of(tmp_path, devices, attempt=2, model=model, data=data, mesh=mesh)
    restored = after.restore()
    assert restored and equal(_flat(restored.state), _flat(state))
    found, wanted = (_goes_on(made, saved) for made, saved in (
        (after.made, restored.state), (before.made, state)))  # fmt: skip
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def _flat(state):
    """The elements of all arrays in the order of the model: rounds give arrays another shape."""
    return jax.tree.map(np.ravel, jax.device_get(state))


def _goes_on(made, state):
    """Losses of the steps after the second one."""
    losses = []
    state = jax.device_put(jax.device_get(state), made.program.shardings)
    for step in (3, 4):
        state, metrics = made.compiled(state, made.batch(step))
        losses.append(float(metrics.loss))
    return losses
