"""Attention on GPUs: what both kernels compute, and what JAX gives to the compiler for CUDA."""

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.support.attention_inputs import (
    assert_close,
    positions_of,
    random_arrays,
    segments_of,
    value_and_gradients,
)
from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.planning.planner import resolve
from trainer.distributed import mesh as meshes
from trainer.model import gpu_attention
from trainer.model.attention_kernels import attend
from trainer.model.remat import REMAT_POLICIES
from trainer.step.schedule import SCHEDULE_SHAPES
from trainer.step.train_step import TrainProgram

ROWS, LENGTH, HEADS, KV_HEADS, HEAD_DIM = 4, 256, 4, 2, 32
SHAPES = [(ROWS, LENGTH, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
SCALE = 0.3
HOPPER = jax.sharding.AbstractMesh(
    (),
    (),
    abstract_device=jax.sharding.AbstractDevice("NVIDIA H100", num_cores=None, platform="gpu"),
)
"""No axes, but a GPU: JAX 0.12 asks for the one that it compiles a Triton kernel for."""
FORWARD, BACKWARD = "__cudnn$fmhaSoftmax(", "__cudnn$fmhaSoftmaxBackward("


@pytest.fixture(scope="module")
def arrays() -> list[jax.Array]:
    return random_arrays(SHAPES)


@pytest.fixture(scope="module")
def segments() -> jax.Array:
    """Documents that end inside a block, at its edge, and never."""
    return segments_of(LENGTH, [[100, 256], [128, 200], [256, 256], [1, 255]])


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with cuDNN and a Hopper GPU: JAX asks for the version and for the GPU."""
    from jax._src.cudnn import fused_attention_stablehlo

    version = SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", version)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: True)


def for_cuda(mix: Callable[..., jax.Array], length: int = LENGTH) -> str:
    """Returns the program of a value and its gradients that the compiler for CUDA would get."""
    shapes = [
        jax.ShapeDtypeStruct((rows, length, *rest), jnp.bfloat16) for rows, _, *rest in SHAPES
    ]

    def loss(*arrays: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(mix(*arrays).astype(jnp.float32)))

    with jax.sharding.use_abstract_mesh(HOPPER):
        traced = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2))).trace(*shapes)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("window", [None, 100])
def test_arguments_for_cudnn_mean_what_the_reference_computes(arrays, window):
    """JAX defines them for its own implementation, too, which runs on CPU."""
    whole = jnp.zeros((ROWS, LENGTH), jnp.int32)
    reference = attend("reference", whole, positions_of(whole), window, None, SCALE)
    kernel: Callable[..., jax.Array] = gpu_attention.with_cudnn
    one = partial(kernel, scale=SCALE, window=window, implementation="xla")
    found = value_and_gradients(lambda *arrays: one(*arrays, whole), arrays)
    assert_close(found, value_and_gradients(reference, arrays))


@pytest.mark.parametrize("mesh", [None, {"data": 2, "fsdp": 2, "tensor": 2}])
def test_triton_kernel_computes_what_the_reference_does(arrays, segments, mesh, monkeypatch):
    interpreted = partial(gpu_attention.with_triton, interpret=True)
    monkeypatch.setattr(gpu_attention, "with_triton", interpreted)
    found = in_mesh(mesh, lambda: value_and_gradients(triton(segments), arrays))
    reference = attend("reference", segments, positions_of(segments), None, None, SCALE)
    assert_close(found, value_and_gradients(reference, arrays))


def triton(segments: jax.Array) -> Any:
    return attend("triton", segments, positions_of(segments), None, None, SCALE)


def in_mesh(sizes: dict[str, int] | None, work: Callable[[], Any]) -> Any:
    """Returns what `work` does on a mesh of eight devices, or without a mesh."""
    if sizes is None:
        return work()
    job = job_of(mesh=sizes)
    with jax.set_mesh(meshes.build(resolve(job, world_of(1, 8), corpus_of(job)))):
        return work()


@pytest.mark.usefixtures("cudnn")
@pytest.mark.parametrize("window", [None, 100])
def test_cudnn_gets_a_causal_call_and_no_mask(segments, window):
    text = for_cuda(attend("cudnn", segments, segments, window, None, SCALE))
    assert (text.count(FORWARD), text.count(BACKWARD)) == (1, 1)
    assert set(re.findall(r"\\22mask_type\\22: \\22(\w+)", text)) == {"CAUSAL"}
    assert set(re.findall(r"\\22sliding_window_length\\22: (\w+)", text)) == {str(window or 0)}
    assert f"{LENGTH}x{LENGTH}" not in text


@pytest.mark.usefixtures("cudnn")
@pytest.mark.parametrize(("remat", "runs"), [("dots", 1), ("attention", 1), ("full", 2)])
def test_only_full_remat_runs_the_cudnn_kernel_again(segments, remat, runs):
    kernel = attend("cudnn", segments, segments)
    text = for_cuda(jax.checkpoint(kernel, policy=REMAT_POLICIES[remat], prevent_cse=False))
    assert (text.count(FORWARD), text.count(BACKWARD)) == (runs, 1)


def packed_for_cuda(remat: str) -> str:
    """Returns the program of attention to packed documents, in rows with room for two."""
    segments = jnp.zeros((ROWS, 2 * LENGTH), jnp.int32)
    kernel = attend("cudnn_packed", segments, segments)
    policy = REMAT_POLICIES[remat]
    return for_cuda(
        jax.checkpoint(kernel, policy=policy, prevent_cse=False), length=segments.shape[1]
    )


@pytest.mark.usefixtures("cudnn")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize(("remat", "runs"), [("dots", 1), ("attention", 1), ("full", 2)])
def test_packed_documents_have_both_kernels_and_no_mask(remat, runs):
    text = packed_for_cuda(remat)
    assert (text.count(FORWARD), text.count(BACKWARD)) == (runs, 1)
    assert text.count('name = "mha_forward"') >= runs
    assert set(re.findall(r"\\22mask_type\\22: \\22(\w+)", text)) == {"PADDING_CAUSAL"}
    assert f"{2 * LENGTH}x{2 * LENGTH}" not in text


def test_documents_of_a_row_have_starts_and_lengths():
    segments = jnp.array([[0, 0, 1, 1, 1, 2, 2, 2], [5] * 8])
    opens, starts, lengths = gpu_attention.documents(segments, room=4)
    assert jnp.sum(opens, axis=1).tolist() == [3, 1]
    assert starts.tolist() == [[0, 2, 5, -1, -1], [0, -1, -1, -1, -1]]
    assert lengths.tolist() == [[2, 3, 3, -1], [8, -1, -1, -1]]


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
def test_triton_kernel_is_compiled_for_cuda_without_a_mask(segments):
    text = for_cuda(triton(segments))
    assert text.count("mha_forward") >= 1
    assert text.count("mha_backward") >= 1
    assert f"{LENGTH}x{LENGTH}" not in text


@pytest.mark.usefixtures("cudnn")
def test_whole_step_for_cuda_calls_cudnn_and_has_no_mask():
    length = 384
    job = job_of(
        model={"head_dim": 64},
        data={"seq_len": length, "mask_across_documents": False, "global_batch": 8},
        mesh={"fsdp": 2, "tensor": 2},
    )
    world = world_of(1, 4, accelerator="h200-4", platform="gpu")
    plan = resolve(job, world, corpus_of(job))
    assert (plan.attention, plan.compute_dtype) == ("cudnn", "bfloat16")
    mesh = meshes.build(plan, jax.devices()[:4])
    program = TrainProgram.of(job, plan, mesh)
    text = lowered_step(program, job, plan)
    assert (text.count(FORWARD), text.count(BACKWARD)) == (1, 1), "of the loop over layers"
    assert f"{length}x{length}" not in text


def lowered_step(program: TrainProgram, job: Any, plan: Any) -> str:
    from trainer.data.loader import abstract_batch

    with jax.set_mesh(program.mesh):
        arguments = (
            SCHEDULE_SHAPES,
            program.shapes,
            abstract_batch(job, plan),
            jax.ShapeDtypeStruct((program.mesh.size,), jnp.int32),
            jax.ShapeDtypeStruct((2,), jnp.float32),
        )
        traced = program.step_function().trace(*arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def test_without_the_triton_kernel_attention_is_the_reference(arrays, segments, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jax.experimental.pallas.ops.gpu", None)
    with pytest.warns(UserWarning, match="whole arrays of scores"):
        found = value_and_gradients(triton(segments), arrays)
    reference = attend("reference", segments, positions_of(segments), None, None, SCALE)
    assert_close(found, value_and_gradients(reference, arrays))
