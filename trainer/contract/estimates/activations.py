"""Activations of a layer in a step: what is kept for the backward pass, and what is worked on."""

import math
from dataclasses import dataclass

from trainer.contract.config.job import Job
from trainer.contract.planning import lora, parameter_shapes, sharding_rules
from trainer.contract.planning.parameter_shapes import hidden_parts, room
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import DTYPE_BYTES, FLOAT32_BYTES

HIDDEN_ARRAYS = {"swiglu": 6, "geglu": 8, "gelu": 6}
"""Of the feed-forward part's inner width, that gradients need."""


def kept_per_token(job: Job, plan: Plan) -> int:
    """Bytes on a device that a layer keeps of a token, by what its backward pass does again.

    `full`: its input. `dots`: also what its products with weights gave, but for the last. `none`:
    all that JAX's gradients ask for.
    """
    of = _Activations.of(job, plan)
    if job.decoder.remat == "full":
        return of.stream
    if job.decoder.remat == "dots":
        return of.of_products + of.adapters + of.adapted
    return 2 * of.stream + of.norms + of.attention + of.feed_forward + of.adapters


def least_kept_per_token(job: Job, plan: Plan) -> int:
    """Bytes that no compiler can do without, as long as it makes no product of weights again.

    With `none` a compiler may make everything else again where it is needed, as `dots` does.
    """
    of = _Activations.of(job, plan)
    return of.stream if job.decoder.remat == "full" else of.of_products


def worked_on_per_token(job: Job, plan: Plan) -> int:
    """Bytes on a device of a token's activations in the layer that is differentiated.

    As the TPU compiler has been seen to arrange them: what attention needs is gone when the feed-
    forward part is made again, or the other way round. Of what that and the norms need two thirds
    are there at once. With `none` a copy of all that was kept is read beside the gradients of the
    scores.
    """
    of = _Activations.of(job, plan)
    if job.decoder.remat == "none":
        return kept_per_token(job, plan) + of.scores
    return 2 * of.norms // 3 + max(of.attention, 2 * of.feed_forward // 3)


@dataclass(frozen=True)
class _Activations:
    """Bytes of a token's activations in a layer, on one device."""

    stream: int
    """A copy of the residual stream, which is whole on every device."""
    norms: int
    """What both need: three copies of the stream each, in float32."""
    query: int
    key_value: int
    """Keys and values together."""
    seen_key_value: int
    """Those that attention works on: of whole sequences, over the tokens that the device has."""
    scores: int
    """Of attention, over all positions: in float32, and as they multiply the values.

    The kernel for TPUs keeps none.
    """
    head_norms: int
    """Of queries and keys: three copies of each, in float32."""
    feed_forward: int
    """What its products gave, and what was made of that."""
    feed_forward_products: int
    """What its products with one matrix gave, but for the last: those of experts have many."""
    adapters: int
    """What the first matrices of adapters gave."""
    adapted: int
    """What their second ones gave, but for the last."""

    @property
    def of_products(self) -> int:
        """What products with weights gave, but for the last, and the layer's input."""
        return 2 * self.stream + self.query + self.key_value + self.feed_forward_products

    @property
    def attention(self) -> int:
        """With what the values were mixed to, which is of the queries' size."""
        return 2 * self.query + self.seen_key_value + self.head_norms + self.scores

    @classmethod
    def of(cls, job: Job, plan: Plan) -> "_Activations":
        model, tensor = job.decoder, plan.mesh["tensor"]
        width = DTYPE_BYTES[plan.compute_dtype]
        heads = model.heads // tensor
        is_split = model.kv_heads % tensor == 0
        # Where the tensor axis does not split them, they are repeated for each query head.
        kv_heads = model.kv_heads // tensor if is_split else model.kv_heads + heads
        scores = 1 if model.attention_soft_cap is None else 3
        positions = job.data.seq_len if plan.attention == "plain" else 0
        hidden = width * (model.d_ff // tensor if model.d_ff % tensor == 0 else model.d_ff)
        stream, key_value = width * model.d_model, width * 2 * kv_heads * model.head_dim
        if experts := model.experts:
            places = experts.count * room(experts, job.data.seq_len) / job.data.seq_len
            if plan.experts == "ragged":
                # Those of the devices along `expert` are together on each.
                places = experts.per_token * plan.mesh["expert"]
            chosen = places + experts.per_token
            feed_forward = int(
                HIDDEN_ARRAYS[model.feed_forward] * hidden * places + stream * chosen
            )
        else:
            feed_forward = HIDDEN_ARRAYS[model.feed_forward] * hidden
        adapted = lora.targets(job.lora, parameter_shapes.parameters(model, plan.padded_vocab))
        made = [_split(one, plan) for one in adapted if not one.name.endswith(".down.kernel")]
        return cls(
            stream=stream,
            norms=6 * FLOAT32_BYTES * model.d_model,
            query=width * heads * model.head_dim,
            key_value=key_value,
            seen_key_value=key_value * plan.mesh["context"],
            scores=(scores * FLOAT32_BYTES + width) * heads * positions,
            head_norms=3
            * FLOAT32_BYTES
            * (heads + kv_heads)
            * model.head_dim
            * model.query_key_norm,
            feed_forward=feed_forward,
            feed_forward_products=0 if experts else len(hidden_parts(model)) * hidden,
            adapters=width * job.lora.rank * len(adapted) if job.lora else 0,
            adapted=width * sum(made),
        )


def _split(kernel: parameter_shapes.Parameter, plan: Plan) -> int:
    """Numbers that a device makes of a token with a kernel."""
    cut = 1 + lora.inputs(kernel)
    shape, axes = kernel.shape[cut:], kernel.axes[cut:]
    split = sharding_rules.partition(shape, axes, plan.mesh)
    parts = plan.mesh["tensor"] if "tensor" in split else 1
    return math.prod(shape) // parts
