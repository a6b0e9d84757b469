"""What a forecast becomes when a step recomputes exactly what the step of a source does.

Slipway recomputes all of a layer, or all but its matrix products; other systems choose among the
products of a layer. The correction is arithmetic: products take time in proportion to their FLOPs.
"""

from collections.abc import Collection, Mapping
from typing import Literal

from launcher.planning.planner import TrainingLaunch
from trainer.contract.config.model import Model
from trainer.contract.estimates.forecast import (
    ATTENTION,
    ATTENTION_PRODUCTS,
    MATRIX_PRODUCTS,
    RECOMPUTED_PRODUCTS,
)

Product = Literal["qkv", "out", "mlp_in", "mlp_down", "attention"]
"""What a layer's backward pass can compute again: the products before attention, after it, into and
out of the MLP or the experts, and the kernel of attention."""
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


def of_policy(remat: str) -> set[Product]:
    """Returns what Slipway computes again under a policy."""
    policies: dict[str, set[Product]] = {
        "none": set(),
        "dots": {"attention"},
        "full": {"qkv", "out", "mlp_in", "mlp_down", "attention"},
    }
    return policies[remat]


def like_for_like(
    parts: Mapping[str, float],
    launch: TrainingLaunch,
    recomputed: Collection[Product],
    *,
    is_fused: bool = False,
) -> float:
    """Returns the seconds of a step that recomputes other products than the launch's.

    Args:
      parts: the seconds of the launch's step by part.
      launch: the launch, whose model and policy are known.
      recomputed: what the other step computes again.
      is_fused: whether one kernel of the other step computes all gradients of attention. Slipway
        has two, and each of them computes the scores and the gradients of the weights.
    """
    model, ours = launch.job.decoder, of_policy(launch.job.decoder.remat)
    work = _products_with(model, recomputed, launch) / _products_with(model, ours, launch)
    saved = FUSED_SAVES if is_fused else 0
    attention = (_attention_with(recomputed) - saved) / _attention_with(ours)
    changed = {
        MATRIX_PRODUCTS: parts.get(MATRIX_PRODUCTS, 0.0) * work,
        ATTENTION: parts.get(ATTENTION, 0.0) * attention,
    }
    return sum({**parts, **changed}.values())


def _products_with(model: Model, recomputed: Collection[Product], launch: TrainingLaunch) -> float:
    """Returns the multiply-adds of a token in all passes, with those of the output layer."""
    each = products(model)
    layer = PASSES * sum(each.values()) + sum(each.get(name, 0.0) for name in recomputed)
    return model.layers * layer + PASSES * launch.plan.padded_vocab * model.d_model


def _attention_with(recomputed: Collection[Product]) -> int:
    return ATTENTION_PRODUCTS + (RECOMPUTED_PRODUCTS if "attention" in recomputed else 0)
