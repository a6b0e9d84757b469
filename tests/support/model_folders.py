"""Folders of Hugging Face's files, made from random parameters and loaded back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from tests.support.jobs import corpus_of, world_of
from trainer import hugging_face
from trainer.contract.planning.planner import resolve
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.distributed import mesh as meshes


def plan_of(job, devices=1):
    return resolve(job, world_of(1, devices), corpus_of(job))


def params_of(job, plan):
    """Random numbers, with zeros for the tokens that only pad."""
    draw = np.random.default_rng(0)
    arrays = {}
    for parameter in plan.parameters:
        array = draw.standard_normal(parameter.shape, np.float32)
        if "vocab" in parameter.axes:
            np.moveaxis(array, parameter.axes.index("vocab"), 0)[vocab_size(job) :] = 0
        arrays[parameter.name] = array
    return arrays


def loaded(path, job, devices=1):
    plan = plan_of(job, devices)
    mesh = meshes.build(plan, jax.devices()[:devices])
    lie = meshes.parameter_shardings(plan, mesh)
    with hugging_face.opened(path, job) as read:
        return {one.name: read(one.name, one.shape, lie[one.name]) for one in plan.parameters}


def folder_maker(folder):
    """make(job, **options) -> the folder, the parameters that were exported into it."""

    def make(job, devices=1, **options):
        params = params_of(job, plan_of(job, devices))
        hugging_face.export(job, params, folder, **options)
        return folder, params

    return make


def assert_equal(got, wanted, atol=0.0):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert got[name].dtype == np.float32
        np.testing.assert_allclose(got[name], array, rtol=0, atol=atol, err_msg=name)


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


@functools.partial(jax.jit, static_argnums=0)
def logits_of(network, params, tokens_BS):
    positions_BS = jnp.broadcast_to(jnp.arange(tokens_BS.shape[1]), tokens_BS.shape)
    model = network.bind(params)
    return model.logits(model(tokens_BS, jnp.zeros_like(tokens_BS), positions_BS))
