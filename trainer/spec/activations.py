"""What each layer of a step keeps of its forward pass for the backward pass, by arithmetic."""

from dataclasses import dataclass

from trainer.spec.job import Job
from trainer.spec.plan import Plan
from trainer.spec.resolve import DTYPE_BYTES, FLOAT32_BYTES


def kept_per_token(job: Job, plan: Plan) -> int:
    """Bytes on a device that a layer keeps of a token, by what its backward pass does again.

    `full`: its input. `dots`: also what its products with weights gave, but for the last. `none`:
    all that JAX's gradients ask for, of which the norms have three float32 copies of the stream
    each, attention the scores after the softmax in float32 and as they multiply the values, and
    the SwiGLU six arrays.
    """
    width, sizes = DTYPE_BYTES[plan.compute_dtype], _Sizes.of(job, plan)
    heads = sizes.query + sizes.key_value
    if job.model.remat == "full":
        return width * sizes.stream
    if job.model.remat == "dots":
        return width * (2 * sizes.stream + heads + 2 * sizes.hidden)
    arrays = 2 * sizes.stream + heads + sizes.query + 6 * sizes.hidden
    return (
        6 * FLOAT32_BYTES * sizes.stream + width * arrays + (FLOAT32_BYTES + width) * sizes.scores
    )


@dataclass(frozen=True)
class _Sizes:
    """Elements of a token's activations in a layer, on one device."""

    stream: int
    """Of the residual stream: whole on every device."""
    query: int
    key_value: int
    """Of keys and values together."""
    hidden: int
    scores: int
    """Of attention, over all positions; the kernel for TPUs keeps none."""

    @classmethod
    def of(cls, job: Job, plan: Plan) -> "_Sizes":
        model, tensor = job.model, plan.mesh["tensor"]
        heads = model.heads // tensor
        splits = model.kv_heads % tensor == 0
        # Where the tensor axis does not split them, they are repeated for each query head.
        kv_heads = model.kv_heads // tensor if splits else model.kv_heads + heads
        hidden = model.d_ff // tensor if model.d_ff % tensor == 0 else model.d_ff
        return cls(
            stream=model.d_model,
            query=heads * model.head_dim,
            key_value=2 * kv_heads * model.head_dim,
            hidden=hidden,
            scores=heads * job.data.seq_len if plan.attention == "plain" else 0,
        )
