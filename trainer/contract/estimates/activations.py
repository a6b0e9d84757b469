"""Activation memory of a layer: kept for the backward pass on the device or in the memory of the
host, and live while differentiated.

References:
    Rematerialization: https://arxiv.org/abs/1604.06174
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from trainer.contract.config.job import Job
from trainer.contract.config.model import REPEATING_PRODUCTS, Model, Offloaded
from trainer.contract.planning import lora, parameter_shapes, sharding_rules
from trainer.contract.planning.array_plans import DTYPE_BYTES, FLOAT32_BYTES
from trainer.contract.planning.attention import packed_documents
from trainer.contract.planning.layer_stacks import LAYERS, layer_stacks
from trainer.contract.planning.parameter_shapes import (
    capacity,
    exchange_places,
    hidden_parts,
    norm_places,
)
from trainer.contract.planning.pipeline import layer_runs
from trainer.contract.planning.plan import Plan

HIDDEN_ARRAYS = {"swiglu": 6, "geglu": 8, "gelu": 6, "clamped_swiglu": 8}
"""Number of arrays of the feed-forward part's hidden width that gradients need."""


def by_layers(job: Job, plan: Plan, runs: int, per_token: Callable[[Job, Plan], int]) -> int:
    """Returns the bytes per token of a number of layers' runs, or of all layers once.

    `per_token` is one of the functions below, whose layer is that of the job's last stack.
    """
    model = job.decoder
    return sum(
        runs
        * stack.count
        // model.layers
        * per_token(job.model_copy(update={"model": stack.model}), plan)
        for stack in layer_stacks(model)
    )


def kept_per_token(job: Job, plan: Plan) -> int:
    """Returns the bytes on a device that a layer keeps per token, by rematerialization policy.

    `full` keeps the layer's input, and `attention` also the outputs of an attention kernel. `dots`
    keeps these and the outputs of its products with weights, except the last. `none` keeps
    everything that JAX's gradients need. What is offloaded is not kept.
    """
    of, offload, remat = _Activations.of(job, plan), job.decoder.offload, job.decoder.remat
    if remat in REPEATING_PRODUCTS:
        of_kernel = of.kernel + of.document_sums if remat == "attention" else 0
        return of_kernel + (0 if "layer_input" in offload else of.stream)
    if remat == "dots":
        kept = of.of_products + of.kernel + of.document_sums + of.adapters + of.adapted
        return kept - of.offloaded(offload)
    return 2 * of.stream + of.norms + of.attention + of.mlp + of.adapters


def offloaded_per_token(job: Job, plan: Plan) -> int:
    """Returns the bytes per token that a device copies to its host's memory in a layer, and back.

    `model.offload` names them. CPU devices copy nothing.
    """
    if plan.world.on_cpu:
        return 0
    return _Activations.of(job, plan).offloaded(job.decoder.offload)


def offloaded_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes that a device copies to its host's memory in a step, and as many back.

    Returns 0 for a custom model, which has no names to offload.
    """
    if not isinstance(job.model, Model):
        return 0
    per_token = by_layers(job, plan, layer_runs(job, plan), offloaded_per_token)
    return plan.batch.tokens_per_device * per_token


def least_kept_per_token(job: Job, plan: Plan) -> int:
    """Returns the bytes per token that any compiler keeps if it recomputes no product with weights.

    With `none` a compiler may recompute everything else where it is needed, as `dots` does. What is
    offloaded counts: it is written to HBM and read from it in both passes, like what is kept.
    """
    of, offload = _Activations.of(job, plan), job.decoder.offload
    if job.decoder.remat not in REPEATING_PRODUCTS:
        return of.of_products
    return of.offloaded({"layer_input", *offload})


def worked_on_per_token(job: Job, plan: Plan) -> int:
    """Returns the bytes per token and device that are live in the layer being differentiated.

    The estimate follows the observed behaviour of the TPU compiler. Activations of attention and of
    the feed-forward part are not live together. Two thirds of the feed-forward part's and of the
    norms' activations are live together. With `none`, a copy of all kept activations is read beside
    the gradients of the scores.
    """
    of = _Activations.of(job, plan)
    if job.decoder.remat == "none":
        return kept_per_token(job, plan) + of.scores
    return 2 * of.norms // 3 + max(of.attention, 2 * of.mlp // 3)


@dataclass(frozen=True)
class _Activations:
    """Bytes of a token's activations in a layer, on one device."""

    stream: int
    """A copy of the residual stream, which is whole on every device."""
    norms: int
    """All norms of the stream: three float32 copies of it each."""
    last_product: int
    """Output of the feed-forward part, if a norm reads it."""
    query: int
    key_value: int
    """Products that keys and values consist of: themselves, except with latent attention."""
    mixed: int
    """Mixed values, of all heads."""
    latents: int
    """Products that latent attention reads, with the rotated key of all heads; 0 without it."""
    seen_key_value: int
    """Keys and values of whole sequences, which attention reads, per token of the device."""
    scores: int
    """Attention scores over all positions: in float32, and in the dtype that multiplies the values.

    Kernels keep none.
    """
    kernel: int
    """Mixed values of a kernel, and a float32 sum of each head; 0 without a kernel."""
    document_sums: int
    """Float32 sums of each head for the documents that `cudnn_packed` has room for; otherwise 0."""
    head_norms: int
    """Norms of queries and keys, or of their latents: three float32 copies of each."""
    mlp: int
    """Outputs of the feed-forward products, and the arrays computed from them."""
    mlp_products: int
    """Outputs of products with a single matrix, except the last; experts have many matrices."""
    adapters: int
    """Outputs of the adapters' first matrices."""
    adapted: int
    """Outputs of the adapters' second matrices, except the last."""

    @property
    def of_products(self) -> int:
        """The layer's input, and the outputs of its products with weights.

        The last one counts only if a norm reads it.
        """
        of_attention = self.query + self.key_value + self.latents
        return 2 * self.stream + of_attention + self.mlp_products + self.last_product

    def offloaded(self, names: Collection[Offloaded]) -> int:
        """Returns the bytes of the activations with these names."""
        sizes: dict[Offloaded, int] = {
            "layer_input": self.stream,
            "qkv": self.query + self.key_value,
            "attention_output": self.stream,
            "mlp_hidden": self.mlp_products,
        }
        return sum(sizes[name] for name in set(names))

    @property
    def attention(self) -> int:
        """All activations of attention, with its mixed values."""
        seen = self.query + self.seen_key_value + self.mixed
        return seen + self.latents + self.head_norms + self.scores + self.document_sums

    @classmethod
    def of(cls, job: Job, plan: Plan) -> "_Activations":
        model, tensor = job.decoder, plan.mesh["tensor"]
        width = DTYPE_BYTES[plan.compute_dtype]
        heads = model.heads // tensor
        is_split = model.kv_heads % tensor == 0
        # Key/value heads that the tensor axis does not split are repeated for each query head.
        kv_heads = model.kv_heads // tensor if is_split else model.kv_heads + heads
        scores = (1 if model.attn_logit_softcap is None else 3) + model.attention_sinks
        positions = job.data.seq_len if plan.attention == "reference" else 0
        room = packed_documents(job.data.seq_len) if plan.attention == "cudnn_packed" else 0
        hidden = width * _parts(model.d_ff, tensor)
        shared = width * _parts(model.d_ff * model.moe.shared, tensor) if model.moe else 0
        stream, value_dim = width * model.d_model, model.value_dim
        seen = width * kv_heads * (model.head_dim + value_dim)
        if experts := model.moe:
            slots = experts.count * capacity(experts, job.data.seq_len) / job.data.seq_len
            if plan.moe == "megablox_exchange":
                slots = experts.top_k * exchange_places(plan.mesh["expert"])
            elif plan.moe != "capacity":
                # Each device holds the rows of all devices along `expert`.
                slots = experts.top_k * plan.mesh["expert"]
            chosen = slots + experts.top_k
            mlp = int(HIDDEN_ARRAYS[model.mlp] * hidden * slots + stream * chosen)
            mlp += HIDDEN_ARRAYS[model.mlp] * shared
        else:
            mlp = HIDDEN_ARRAYS[model.mlp] * hidden
        normalized = (heads + kv_heads) * model.head_dim if model.qk_norm else 0
        products, latents = seen, 0
        if latent := model.latent_attention:
            normalized = (latent.query_rank or 0) + latent.rank
            products = width * heads * (latent.plain_dim + value_dim)
            latents = width * (normalized + latent.rotary_dim)
        before_after = norm_places(model)
        parameters = parameter_shapes.parameters(model, plan.padded_vocab)
        own = [one for one in parameters if one.name.startswith(f"{LAYERS}.")]
        adapted = lora.targets(job.lora, own)
        outputs = [_split(one, plan) for one in adapted if not one.name.endswith(".down.kernel")]
        return cls(
            stream=stream,
            norms=sum(before_after) * 6 * FLOAT32_BYTES * model.d_model,
            last_product=0 if experts else before_after[1] * stream,
            query=width * heads * model.head_dim,
            key_value=products,
            mixed=width * heads * value_dim,
            latents=latents,
            # By heads, whole sequences take the place of all heads.
            seen_key_value=seen * (plan.mesh["context"] if plan.batch.chunks > 1 else 1),
            scores=(scores * FLOAT32_BYTES + width) * heads * positions,
            kernel=0 if positions else (width * value_dim + FLOAT32_BYTES) * heads,
            document_sums=FLOAT32_BYTES * heads * room,
            head_norms=3 * FLOAT32_BYTES * normalized,
            mlp=mlp,
            mlp_products=len(hidden_parts(model)) * (shared if experts else hidden),
            adapters=width * job.lora.rank * len(adapted) if job.lora else 0,
            adapted=width * sum(outputs),
        )


def _parts(hidden: int, tensor: int) -> int:
    """Returns the part of a hidden width that a device has."""
    return hidden // tensor if hidden % tensor == 0 else hidden


def _split(kernel: parameter_shapes.Parameter, plan: Plan) -> int:
    """Returns the output elements of a kernel per token and device."""
    cut = 1 + lora.inputs(kernel)
    shape, axes = kernel.shape[cut:], kernel.axes[cut:]
    split = sharding_rules.partition(shape, axes, plan.mesh)
    parts = plan.mesh["tensor"] if "tensor" in split else 1
    return math.prod(shape) // parts
