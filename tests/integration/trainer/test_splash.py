"""The attention kernel for TPUs, interpreted, computes what plain attention computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Jaxpr, jaxprs_in_params

from tests.support.attention_inputs import (
    assert_close,
    positions_of,
    random_arrays,
    segments_of,
    value_and_gradients,
)
from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.planning import attention as planned
from trainer.contract.planning.planner import resolve
from trainer.data.packing import in_order_of_chunks
from trainer.distributed import mesh as meshes
from trainer.model import splash_attention
from trainer.model.attention_kernels import attend
from trainer.model.remat import REMAT_POLICIES

ROWS, LENGTH, HEADS, KV_HEADS, HEAD_DIM = 4, 512, 4, 2, 128
SHAPES = [(ROWS, LENGTH, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]


@pytest.fixture(scope="module")
def arrays() -> list[jax.Array]:
    return random_arrays(SHAPES)


@pytest.fixture(scope="module")
def segments() -> jax.Array:
    """Documents that end inside a block, at its edge, and never."""
    return segments_of(LENGTH, [[100, 512], [128, 400], [512, 512], [1, 511]])


@pytest.fixture(scope="module")
def positions(segments) -> jax.Array:
    return positions_of(segments)


@pytest.fixture
def small_blocks(monkeypatch) -> None:
    """Makes several blocks of the short sequences: the kernels need not look at all of them."""
    monkeypatch.setattr(planned, "SPLASH_BLOCK", 128)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("window", "softcap", "has_one_kernel"),
    [(None, None, True), (300, 2.0, True), (100, 2.0, False)],
)
def test_values_and_gradients_are_those_of_plain_attention(
    arrays, segments, positions, window, softcap, has_one_kernel
):
    assert (planned.splash_part(LENGTH, 2 * HEAD_DIM, window) is not None) == has_one_kernel
    scale = softcap and 0.2
    reference = attend("reference", segments, positions, window, softcap, scale)
    wanted = value_and_gradients(reference, arrays)
    kernel = splash_attention.attend(segments, window, softcap, scale, interpret=True)
    assert_close(value_and_gradients(kernel, arrays), wanted)


def test_queries_and_keys_may_be_wider_than_values(arrays, segments, positions):
    query, key, value = (x[:1] for x in arrays)
    wide = [jnp.concatenate([x, x[..., 64:]], axis=-1) for x in (query, key)]
    reference = attend("reference", segments[:1], positions[:1])
    kernel = splash_attention.attend(segments[:1], interpret=True)
    wanted = value_and_gradients(reference, [*wide, value])
    assert_close(value_and_gradients(kernel, [*wide, value]), wanted)


def runs_of(kernel: str, jaxpr: Jaxpr) -> int:
    """Returns how often a program runs a kernel whose name begins like this.

    The compiler removes calls without results, which rematerialization leaves behind.
    """
    used = [equation for equation in jaxpr.eqns if equation.outvars]
    own = sum(
        equation.primitive.name == "pallas_call" and equation.params["name"].startswith(kernel)
        for equation in used
    )
    inner = [one for equation in used for one in jaxprs_in_params(equation.params)]
    return own + sum(runs_of(kernel, one) for one in inner)


@pytest.mark.parametrize(("remat", "runs"), [("dots", 1), ("attention", 1), ("full", 2)])
def test_only_full_rematerialization_runs_the_kernel_again(arrays, segments, remat, runs):
    kept = splash_attention.attend(segments, interpret=True)
    again = jax.checkpoint(kept, policy=REMAT_POLICIES[remat], prevent_cse=False)
    program = jax.make_jaxpr(lambda *arrays: value_and_gradients(again, [*arrays]))(*arrays)
    assert runs_of("splash_mha_fwd", program.jaxpr) == runs
    for one, other in zip(*(value_and_gradients(x, arrays) for x in (again, kept)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("mesh", "chunks", "window"),
    [
        ({"data": 2, "fsdp": 2, "tensor": 2}, 1, None),
        ({"fsdp": 2, "context": 2, "tensor": 2}, 4, None),
        ({"fsdp": 4, "context": 2}, 4, 100),
        ({"fsdp": 4, "context": 2}, 1, None),
        # A host that checks its own devices has the chunks of a larger mesh.
        ({"fsdp": 4, "tensor": 2}, 4, None),
    ],
)
def test_on_a_mesh_each_device_computes_its_own_rows_positions_and_heads(
    arrays, segments, positions, mesh, chunks, window
):
    wanted = value_and_gradients(attend("reference", segments, positions, window), arrays)
    job = job_of(mesh=mesh)
    plan = resolve(job, world_of(1, 8), corpus_of(job))
    order = in_order_of_chunks(np.arange(LENGTH), chunks)
    kernel = splash_attention.attend(segments[:, order], window, chunks=chunks, interpret=True)
    with jax.set_mesh(meshes.build(plan)):
        found = value_and_gradients(kernel, [array[:, order] for array in arrays])
    assert_close(found, [array[:, order] for array in wanted])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("has_one_kernel", [True, False])
@pytest.mark.parametrize("context", [2, 4, 16])
@pytest.mark.parametrize("window", [None, 256])
def test_kernels_of_all_devices_compute_the_same_number_of_blocks(
    context, window, has_one_kernel, monkeypatch
):
    if not has_one_kernel:
        monkeypatch.setattr(planned, "LARGEST_PART", 0)
    length = 32 * 128

    def work(chunks: int) -> np.ndarray:
        """Blocks that each kernel computes, by device, relative to their mean."""
        sizes = splash_attention.block_sizes(length, 2 * HEAD_DIM, window, max(context, chunks))
        kernel = splash_attention.make_kernel(
            length, 1, sizes, window, None, (1, context), chunks, interpret=True
        )
        all_infos = (kernel.fwd_mask_info, kernel.dq_mask_info, kernel.dkv_mask_info)
        infos = [one for one in all_infos if one is not None]
        blocks = [np.split(np.asarray(one.block_mask) > 0, context, axis=1) for one in infos]
        counts = np.array([[part.sum() for part in parts] for parts in blocks])
        return counts / counts.mean(axis=1, keepdims=True)

    balanced = work(2 * context)
    if window is None:
        assert np.abs(balanced - 1).max() < 0.05
        assert work(1).max() > 1.4
    else:
        assert balanced.max() < 1.1


@pytest.mark.parametrize(
    ("facts", "sizes", "kind"),
    [
        ({}, {}, "splash"),
        ({"simulated": True}, {}, "reference"),
        ({}, {"seq_len": 200}, "reference"),
        ({}, {"head_dim": 64}, "reference"),
        ({}, {"context": 2, "seq_len": 512}, "splash"),
        ({}, {"context": 2}, "reference"),
    ],
)
def test_the_plan_names_it_where_the_chips_and_the_shapes_allow_it(facts, sizes, kind):
    world = world_of(
        **{"processes": 1, "devices": 4, "accelerator": "v4-8", "platform": "tpu"}
        | {"topology": (2, 2, 1), "host_bounds": (2, 2, 1)}
        | facts
    )
    job = job_of(
        model={"head_dim": sizes.get("head_dim", 128)},
        data={"seq_len": sizes.get("seq_len", 256)},
        mesh={"context": sizes.get("context", 1)},
    )
    assert resolve(job, world, corpus_of(job)).attention == kind
