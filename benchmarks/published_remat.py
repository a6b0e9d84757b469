"""What a forecast becomes when a step recomputes exactly what the step of a source does.

Slipway recomputes all of a layer, all but its matrix products, or all but what it offloads; other
systems choose among the products of a layer. The correction is arithmetic: products take time in
proportion to their FLOPs. No step recomputes the product out of an MLP, since no gradient needs its
result; that of experts is recomputed, because the gradient of the router's weights needs it.
"""

from collections.abc import Collection, Mapping
from typing import Literal, get_args

from launcher.planning.planner import TrainingLaunch
from trainer.contract.config.model import REPEATING_PRODUCTS, Model, Offloaded
from trainer.contract.estimates.flops import recomputes_attention
from trainer.contract.estimates.forecast import (
    ATTENTION,
    ATTENTION_PRODUCTS,
    MATRIX_PRODUCTS,
    RECOMPUTED_PRODUCTS,
)
from trainer.contract.planning.attention import has_one_backward_kernel

Product = Literal["qkv", "out", "mlp_in", "mlp_down", "attention"]
"""What a layer's backward pass can compute again: the products before attention, after it, into and
out of the MLP or the experts, and the kernel of attention."""
PRODUCTS: dict[Offloaded, Product] = {
    "qkv": "qkv", "attention_output": "out", "mlp_hidden": "mlp_in",
}  # fmt: skip
"""Product of a layer whose results are offloaded under a name of `model.offload`."""
FUSED_SAVES = 2
"""Products of attention that a fused backward kernel saves: 5 instead of 3 and 4."""
PASSES = 3
"""Forward, and two products for the gradients."""


def products(model: Model) -> dict[Product, float]:
    """Returns the multiply-adds of a token in each of a layer's products with weights."""
    heads = model.heads * model.head_dim
    used = model.moe.top_k * (model.moe.capacity_factor or 1.0) if model.moe else 1.0
    into = 1 if model.mlp == "gelu" else 2
    return {
        "qkv": model.d_model * (heads + 2 * model.kv_heads * model.head_dim),
        "out": heads * model.d_model,
        "mlp_in": into * model.d_model * model.d_ff * used,
        "mlp_down": model.d_model * model.d_ff * used,
    }


def of_launch(launch: TrainingLaunch) -> set[Product]:
    """Returns what the step of a launch computes again."""
    model = launch.job.decoder
    found: set[Product] = set()
    if model.remat in REPEATING_PRODUCTS:
        found = {*get_args(Product)} - {PRODUCTS[n] for n in model.offload if n in PRODUCTS}
        found.remove("attention")
    if recomputes_attention(launch.job, launch.plan):
        found.add("attention")
    if model.remat == "dots" and model.moe:
        found |= {"mlp_in", "mlp_down"}
    return found


def like_for_like(
    parts: Mapping[str, float],
    launch: TrainingLaunch,
    recomputed: Collection[Product],
    *,
    is_fused: bool | None = None,
) -> float:
    """Returns the seconds of a step that recomputes other products than the launch's.

    Args:
      parts: the seconds of the launch's step by part.
      launch: the launch, whose model and policy are known.
      recomputed: what the other step computes again.
      is_fused: whether one kernel of the other step computes all gradients of attention; None for
        the kernels of the launch. Each one of two computes the scores and the weights' gradients.
    """
    ours = of_launch(launch)
    work = _products_with(recomputed, launch) / _products_with(ours, launch)
    own_is_fused = has_one_backward_kernel(launch.job, launch.plan.attention)
    theirs = _attention_with(recomputed, own_is_fused if is_fused is None else is_fused)
    attention = theirs / _attention_with(ours, own_is_fused)
    changed = {
        MATRIX_PRODUCTS: parts.get(MATRIX_PRODUCTS, 0.0) * work,
        ATTENTION: parts.get(ATTENTION, 0.0) * attention,
    }
    return sum({**parts, **changed}.values())


def _products_with(recomputed: Collection[Product], launch: TrainingLaunch) -> float:
    """Returns the multiply-adds of a token in all passes, with those of the output layer."""
    model = launch.job.decoder
    each = products(model)
    unread = () if model.moe else ("mlp_down",)
    again = sum(each.get(name, 0.0) for name in recomputed if name not in unread)
    layer = PASSES * sum(each.values()) + again
    return model.layers * layer + PASSES * launch.plan.padded_vocab * model.d_model


def _attention_with(recomputed: Collection[Product], is_fused: bool) -> int:
    again = RECOMPUTED_PRODUCTS if "attention" in recomputed else 0
    return ATTENTION_PRODUCTS + again - (FUSED_SAVES if is_fused else 0)
