"""Rematerialization: what the backward pass finds in memory, and what it computes again.

References:
    Rematerialization: https://arxiv.org/abs/1604.06174
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

from trainer.contract.config.model import Model, Offloaded
from trainer.model import gpu_attention, quantized
from trainer.model.attention_kernels import KERNEL_RESULT

Policy = Callable[..., Any]

# What the attention kernels return: that of TPUs by name. `dots` also keeps by name the results of
# products in 8 bits. It does not keep their sums of 32 bits, whose parts are a batch dim.
_BOTH = jax.checkpoint_policies.save_from_both_policies
_OF_KERNELS = _BOTH(
    jax.checkpoint_policies.save_only_these_names(KERNEL_RESULT), gpu_attention.is_forward_pass
)
_PRODUCTS = _BOTH(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    jax.checkpoint_policies.save_only_these_names(quantized.PRODUCT),
)
REMAT_POLICIES: dict[str, Policy] = {
    "dots": _BOTH(_PRODUCTS, _OF_KERNELS),
    "attention": _OF_KERNELS,
    "full": jax.checkpoint_policies.nothing_saveable,
}


def named(x: jax.Array, name: Offloaded) -> jax.Array:
    """Returns `x` with the name by which `model.offload` moves it to the host's memory."""
    return checkpoint_name(x, name)


def rematerialized(model: Model, layer: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a layer of a loop whose backward pass keeps, reads and repeats what the model says.

    The devices copy activations of `model.offload` to the host's memory and back. CPU devices have
    no memory of their own, so there the copies are left out.
    """
    if model.remat == "none":
        return layer
    # Inside a scan, XLA cannot merge recomputation and forward pass: no barrier is needed.
    return jax.checkpoint(layer, policy=_policy(model), prevent_cse=False)


def _policy(model: Model) -> Policy:
    others = REMAT_POLICIES[model.remat]
    if not model.offload:
        return others
    offloading = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=[*model.offload],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def policy(primitive: Any, *args: Any, **params: Any) -> Any:
        chosen = offloading if params.get("name") in model.offload else others
        return chosen(primitive, *args, **params)

    return policy
