"""Which kernel computes attention, by the devices, the model and the data; and why none does."""

import math

from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel
from trainer.contract.planning.chips import GPUS
from trainer.contract.planning.plan import AttentionKernel, Dtype, World

TPU_LANES = 128
"""Lanes of a TPU's vector register: `num_lanes` of jax.experimental.pallas.tpu.TpuInfo."""
SPLASH_BLOCK = 512
"""Positions in a block of the splash kernels; blocks of this size fit the VMEM of every TPU."""
SPLASH_PARTS = 4
"""Most blocks of keys of the splash kernel for all gradients. Each of them writes a gradient of all
queries to HBM."""
LARGEST_PART = 2048 * 2 * TPU_LANES
"""Keys and values in the largest of these blocks: more does not fit the VMEM of a v4, v5e or v5p,
as their compiler says."""
TRITON_BLOCK = 128
"""Positions in a block of queries or keys: `BlockSizes.get_default` of the kernel's module."""
POSITIONS_PER_DOCUMENT, MOST_DOCUMENTS = 256, 64
"""cuDNN has room for a document per 256 positions of a row, but not for more than 64. Its time
grows with the room (trainer/model/gpu_attention.py has figures), and so does its memory: a float32
per head, position and place of a document. Text for pretraining has more than 256 tokens in a
document on average."""
CUDNN_HEAD_DIM = 8
"""A head's size is a multiple of it: `check_is_flash_attention` of JAX's cuDNN attention."""


def choose(job: Job, world: World, dtype: Dtype, chunks: int) -> tuple[AttentionKernel, str]:
    """Returns the kernel, and why it is `reference` although GPUs have kernels; "" otherwise.

    `dtype` and `chunks` are those of the plan.
    """
    if isinstance(job.model, CustomModel) or world.on_cpu:
        return "reference", ""
    if world.platform == "tpu":
        return ("splash" if _fits_splash(job, chunks) else "reference"), ""
    if world.platform == "gpu":
        reason = _unfit_for_gpus(job, world, dtype, chunks)
        return ("reference" if reason else _for_gpus(job, world)), reason
    return "reference", ""


def _fits_splash(job: Job, chunks: int) -> bool:
    """Returns whether the kernel for TPUs has what the model needs.

    Chunks and values are whole vectors. Queries and keys of another width, which only latent
    attention has, are padded. Sinks it does not have: gpt-oss also has smaller heads.
    """
    sizes = (job.data.seq_len // chunks, job.decoder.value_dim)
    return not job.decoder.attention_sinks and all(size % TPU_LANES == 0 for size in sizes)


def splash_part(length: int, width: int, window: int | None) -> int | None:
    """Returns the size of the blocks of keys of the splash kernel for all gradients.

    `width` is that of a head's keys and values, in whole vectors. None stands for two kernels,
    which compute the scores twice: where blocks do not fit the VMEM, or lie outside a window.
    """
    blocks = length // math.gcd(length, SPLASH_BLOCK)
    part = length // next(parts for parts in range(SPLASH_PARTS, 0, -1) if blocks % parts == 0)
    fits = part * width <= LARGEST_PART and (window is None or window >= 2 * part)
    return part if fits else None


def has_one_backward_kernel(job: Job, kernel: AttentionKernel) -> bool:
    """Returns whether one splash kernel computes all gradients of attention."""
    model = job.decoder
    width = -(-model.head_dim // TPU_LANES) * TPU_LANES + model.value_dim
    return kernel == "splash" and bool(splash_part(job.data.seq_len, width, model.sliding_window))


def _for_gpus(job: Job, world: World) -> AttentionKernel:
    if not job.data.mask_across_documents:
        return "cudnn"
    packs = GPUS[world.accelerator.rpartition("-")[0]].packs_documents
    return "cudnn_packed" if packs and packed_documents(job.data.seq_len) > 1 else "triton"


def packed_documents(length: int) -> int:
    """Returns how many documents of a row `cudnn_packed` has room for."""
    return min(length // POSITIONS_PER_DOCUMENT, MOST_DOCUMENTS)


def _unfit_for_gpus(job: Job, world: World, dtype: Dtype, chunks: int) -> str:
    """Returns what the kernel for GPUs does not have, or ""; JAX's Triton kernel has no window."""
    model, data = job.decoder, job.data
    gpu = GPUS.get(world.accelerator.rpartition("-")[0])
    if gpu is None:
        return f"{world.accelerator} is an unknown GPU"
    if dtype != "bfloat16":
        return f"it computes in bfloat16, not {dtype} (model.compute_dtype)"
    if model.attention_sinks:
        return "it has no model.attention_sinks"
    if model.latent_attention:
        return "it takes values as wide as queries, not those of model.latent_attention"
    if model.attn_logit_softcap is not None:
        return "it has no model.attn_logit_softcap"
    if chunks > 1:
        return "it takes whole sequences, not chunks (mesh.context_attention)"
    if model.head_dim % CUDNN_HEAD_DIM or model.head_dim > gpu.largest_head_dim:
        return (
            f"it takes multiples of {CUDNN_HEAD_DIM} up to {gpu.largest_head_dim} as "
            f"model.head_dim, not {model.head_dim}"
        )
    if data.mask_across_documents and model.sliding_window is not None:
        return "it has no model.sliding_window with data.mask_across_documents"
    if data.mask_across_documents and data.seq_len % TRITON_BLOCK:
        return f"it takes multiples of {TRITON_BLOCK} as data.seq_len, not {data.seq_len}"
    return ""
