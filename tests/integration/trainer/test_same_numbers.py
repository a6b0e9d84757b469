"""A job's losses do not depend on the mesh."""

import re

import numpy as np
import pytest

from tests.support.harness import Bench, bench
from tests.support.jobs import job_of, world_of
from trainer.contract.planning import mesh_layout
from trainer.model import attention_kernels

STEPS = 20
MESHES = {
    "fsdp 4": (4, {"fsdp": 4}),
    "tensor 2, fsdp 2": (4, {"tensor": 2, "fsdp": 2}),
    "tensor 4, kv heads replicated": (4, {"tensor": 4}),
    "data 2, fsdp 2, tensor 2": (8, {"data": 2, "fsdp": 2, "tensor": 2}),
    "context 4": (4, {"context": 4}),
    "fsdp 2, context 2, tensor 2": (8, {"context": 2, "tensor": 2}),
    "context 2, tensor 4, kv heads replicated": (8, {"context": 2, "tensor": 4}),
}
OFFLOAD = ["layer_input", "qkv", "attention_output", "mlp_hidden"]
TORUS = {"platform": "tpu", "accelerator": "v4-16", "simulated": True,
         "topology": (2, 2, 2), "host_bounds": (2, 2, 2)}  # fmt: skip

TPU = {"platform": "tpu", "accelerator": "v5e-1", "topology": (1, 1), "host_bounds": (1, 1)}

LOOP = re.compile(r' while\(.*op_name="[^"]*/while"')
"""A loop of the trainer in a compiled program: XLA also makes loops of other operations."""


def _job(**changes):
    return job_of(steps=STEPS, **changes)


def _losses(made, steps=STEPS):
    return np.array([metrics.loss for metrics in made.run(steps)[1]])


@pytest.fixture(scope="module")
def alone():
    return bench(_job()).run(STEPS)[1]


@pytest.mark.parametrize(("devices", "mesh"), MESHES.values(), ids=MESHES)
def test_losses_are_those_of_one_device(alone, devices, mesh):
    metrics = bench(_job(mesh=mesh), devices).run(STEPS)[1]
    for here, there in zip(metrics, alone, strict=True):
        np.testing.assert_allclose(here.loss, there.loss, rtol=1e-5)
        np.testing.assert_allclose(here.grad_norm, there.grad_norm, rtol=1e-3)


def test_every_global_batch_has_the_same_examples(alone):
    metrics = bench(_job(mesh={"tensor": 2}), 8).run(STEPS)[1]
    assert [m.examples for m in metrics] == [m.examples for m in alone]
    assert len({int(m.examples) for m in alone}) == STEPS


def test_losses_in_the_device_order_of_a_torus_are_those_of_one_device(alone):
    made = bench(_job(mesh={"tensor": 2}), 8, **TORUS)
    assert list(made.plan.device_order) != sorted(made.plan.device_order)
    np.testing.assert_allclose(_losses(made), [m.loss for m in alone], rtol=1e-5)


def test_losses_do_not_depend_on_how_gradients_are_scattered(alone, monkeypatch):
    monkeypatch.setattr(mesh_layout, "fsdp_rows", lambda world, mesh: 2)
    by_rows = _losses(bench(_job(), 8), 5)
    np.testing.assert_allclose(by_rows, [m.loss for m in alone[:5]], rtol=1e-5)


def test_losses_do_not_depend_on_the_blocks_of_queries(alone, monkeypatch):
    monkeypatch.setattr(attention_kernels, "LEAST_BLOCK", 8)
    assert attention_kernels.query_blocks(32) == 4
    made = Bench.of(_job(mesh={"tensor": 2, "fsdp": 2}), world_of(1, 4))
    np.testing.assert_allclose(_losses(made, 5), [m.loss for m in alone[:5]], rtol=1e-5)


def test_dropout_does_not_depend_on_the_mesh():
    model = {"dropout": 0.2}
    one = _losses(bench(_job(model=model)), 5)
    many = _losses(bench(_job(model=model, mesh={"context": 2, "tensor": 2}), 8), 5)
    without = _losses(bench(_job()), 5)
    np.testing.assert_allclose(one, many, rtol=1e-5)
    assert np.all(np.abs(one - without) > 1e-4)


def test_dropout_does_not_depend_on_the_micro_batch():
    whole, parts = (
        _losses(bench(_job(model={"dropout": 0.2}, data={"grad_accum_steps": count})), 5)
        for count in (1, 4)
    )
    np.testing.assert_allclose(whole, parts, rtol=1e-5)


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"remat": "dots"},
        {"remat": "full"},
        {"remat": "attention"},
        {"remat": "dots", "offload": ["layer_input"]},
        {"remat": "full", "offload": OFFLOAD},
    ],
)
@pytest.mark.parametrize("facts", [{}, TPU], ids=["written out", "in a loop"])
def test_scan_and_rematerialization_change_no_number(alone, model, facts):
    """On CPU the layers are always written out: the loop is asked for by what the plan says."""
    made = bench(_job(model={"compute_dtype": "float32", **model}), 1, **facts)
    assert bool(LOOP.search(made.text)) == bool(facts)
    np.testing.assert_allclose(_losses(made, 5), [m.loss for m in alone[:5]], rtol=1e-5)


@pytest.mark.parametrize(
    ("devices", "mesh"),
    [
        (8, {"data": 2, "fsdp": 2, "tensor": 2}),
        (8, {"context": 2, "tensor": 4}),
    ],
)
def test_losses_with_offloaded_activations_do_not_depend_on_the_mesh(alone, devices, mesh):
    model = {"remat": "full", "offload": OFFLOAD}
    made = bench(_job(model=model, mesh=mesh, data={"grad_accum_steps": 2}), devices)
    np.testing.assert_allclose(_losses(made), [m.loss for m in alone], rtol=1e-5)
