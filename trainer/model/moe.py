"""Mixture of experts: the router assigns each token to a few feed-forward parts.

The letters of dims are those of trainer/model/__init__.py.

Capacity is counted per sequence, so the output of a token depends neither on the mesh nor on the
other sequences of the batch. When capacity suffices for all tokens, moe_dropless.py needs no slots.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.model import Model, Precision
from trainer.contract.planning.parameter_shapes import capacity, hidden_parts
from trainer.contract.planning.plan import MoEKind
from trainer.model import grouped_products, moe_dropless, quantized
from trainer.model.attention import residual_gain
from trainer.model.layers import Projection
from trainer.model.mlp import ACTIVATIONS, MLP
from trainer.model.moe_dispatch import Routing, combine, dispatch
from trainer.model.moe_routing import Balance, choose
from trainer.model.sharding import constrain, gathered, rows_are_split

BY_ROWS, BY_EXPERTS = ("batch", None), ("expert_batch", "expert")
"""Layouts of the first two dims of (B, E, C, ...): each device has all tokens of its rows, or the
tokens of its experts from more rows."""


class MoE(nnx.Module):
    """A mixture of experts that replaces the feed-forward part of a layer.

    Maps (B, S, D) to (B, S, D). Each token uses `top_k` experts, which moe_routing.py chooses and
    weights, and all shared experts, which are one MLP. With `capacity_factor`, an expert takes at
    most C tokens of a sequence; later tokens skip it.

    References:
        Switch Transformers: https://arxiv.org/abs/2101.03961
        GShard, for the capacity of an expert: https://arxiv.org/abs/2006.16668
        Mixtral, section 2.1, for the softmax over the largest logits:
        https://arxiv.org/abs/2401.04088
        DeepSeekMoE, section 3.2, for shared experts: https://arxiv.org/abs/2401.06066
    """

    def __init__(self, rngs: nnx.Rngs, model: Model, kind: MoEKind = "capacity"):
        """Builds router and experts; `kind` is the plan's `moe`."""
        assert model.moe
        self.settings = model.moe
        self.by: MoEKind = kind
        self.parts, self.kind = hidden_parts(model), model.mlp
        width, hidden, count = model.d_model, model.d_ff, self.settings.count
        bias = model.biases == "all"
        self.router = Projection(rngs, (width, count), ("embed", "router"), bias=bias)
        inward, outward = (count, width, hidden), (count, hidden, width)
        kernel = partial(_Kernel, rngs, bias=bias, precision=model.precision)
        for part in self.parts:
            setattr(self, part, kernel(inward, moe_dropless.INWARD))
        self.down = kernel(outward, moe_dropless.OUTWARD, residual_gain(model))
        if self.settings.is_biased:
            self.balancing_bias = nnx.Param(jnp.zeros((count,)), out_sharding=("router",))
        if self.settings.shared:
            self.shared = MLP(rngs, model, self.settings.shared * hidden)

    def __call__(self, x_BSD: jax.Array) -> tuple[jax.Array, Balance]:
        """Returns the output (B, S, D), and the balance of the experts, with the load (B, E)."""
        logits_BSE = self.router(x_BSD).astype(jnp.float32)
        bias_E = self.balancing_bias[...] if self.settings.is_biased else None
        experts_BSk, weights_BSk, balance = choose(self.settings, logits_BSE, bias_E)
        is_dropless = self.by != "capacity" and rows_are_split(len(x_BSD))
        mix = self._dropless if is_dropless else self._in_slots
        mixed_BSD = mix(x_BSD, experts_BSk, weights_BSk.astype(x_BSD.dtype))
        if self.settings.shared:
            mixed_BSD = mixed_BSD + self.shared(x_BSD)
        return mixed_BSD, balance

    def _dropless(
        self, x_BSD: jax.Array, experts_BSk: jax.Array, weights_BSk: jax.Array
    ) -> jax.Array:
        inward = [getattr(self, part).cast(x_BSD.dtype) for part in self.parts]
        activation, outward = ACTIVATIONS[self.kind], self.down.cast(x_BSD.dtype)
        product, sends_rows = grouped_products.KINDS[self.by], self.by == "megablox_exchange"
        return moe_dropless.dropless_moe(
            product, sends_rows, activation, x_BSD, experts_BSk, weights_BSk, inward, outward
        )

    def _in_slots(
        self, x_BSD: jax.Array, experts_BSk: jax.Array, weights_BSk: jax.Array
    ) -> jax.Array:
        slots = capacity(self.settings, x_BSD.shape[1])
        routing = _routing(experts_BSk, self.settings.count, slots)
        slotted_BQD = dispatch(constrain(x_BSD, "batch", None, None), routing)
        slotted_BECD = slotted_BQD.reshape(len(x_BSD), -1, slots, x_BSD.shape[-1])
        fed_BECD = _exchanged(self._apply_experts(_exchanged(slotted_BECD, *BY_EXPERTS)), *BY_ROWS)
        mixed_BSD = combine(fed_BECD.reshape(slotted_BQD.shape), weights_BSk, routing)
        return constrain(mixed_BSD, "batch", None, None)

    def _apply_experts(self, x_BECD: jax.Array) -> jax.Array:
        """Applies each expert to the tokens in its slots."""
        hidden_BECF = ACTIVATIONS[self.kind](*(getattr(self, part)(x_BECD) for part in self.parts))
        return self.down(constrain(hidden_BECF, *BY_EXPERTS, None, "mlp"))


class _Kernel(nnx.Module):
    """A matrix for each expert, and optionally a bias."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        shape: tuple[int, ...],
        axes: tuple[str, ...],
        gain: float = 1.0,
        *,
        bias: bool,
        precision: Precision | None,
    ):
        self.axes, self.has_bias = axes, bias
        self.precision: Precision | None = precision
        kernel = gain / math.sqrt(shape[1]) * jax.random.normal(rngs.params(), shape)
        self.kernel = nnx.Param(kernel, out_sharding=axes)
        if bias:
            zeros = jnp.zeros((shape[0], shape[2]))
            self.bias = nnx.Param(zeros, out_sharding=(axes[0], axes[2]))

    def __call__(self, x_BECx: jax.Array) -> jax.Array:
        """Returns the products of each expert's rows with its matrix."""
        kernels, bias = self.cast(x_BECx.dtype)
        if self.precision is None:
            product = jnp.einsum("becx,exy->becy", x_BECx, gathered(kernels, self.axes))
        else:
            product = quantized.expert_products(x_BECx, kernels, self.axes, self.precision)
        if bias is None:
            return product
        return product + gathered(bias, (self.axes[0], self.axes[2]))[:, None]

    def cast(self, dtype: jnp.dtype) -> moe_dropless.Matrices:
        """Returns the matrices in `dtype` and the biases or None, in their stored layout."""
        bias = self.bias[...].astype(dtype) if self.has_bias else None
        return moe_dropless.Matrices(self.kernel[...].astype(dtype), bias)


def _routing(experts_BSk: jax.Array, count: int, slots: int) -> Routing:
    """Returns which slots serve which choices of a sequence.

    Earlier choices get slots first. A choice beyond its expert's capacity gets none: the token
    skips that expert.
    """
    experts_BN = experts_BSk.reshape(len(experts_BSk), -1)
    chosen_BNE = experts_BN[:, :, None] == jnp.arange(count)
    counts_BE = jnp.sum(chosen_BNE, axis=1)
    first_BE = jnp.cumsum(counts_BE, axis=1) - counts_BE
    order_BN = jnp.argsort(experts_BN, axis=1, stable=True)

    rank_BN = jnp.argsort(order_BN, axis=1)
    number_BN = rank_BN - jnp.take_along_axis(first_BE, experts_BN, axis=1)
    is_kept_BN = number_BN < slots
    slot_BN = jnp.where(is_kept_BN, experts_BN * slots + number_BN, 0)

    slots_C = jnp.arange(slots)
    is_taken_BEC = slots_C < counts_BE[:, :, None]
    ranked_BEC = jnp.where(is_taken_BEC, first_BE[:, :, None] + slots_C, 0)
    is_taken_BQ, ranked_BQ = (x.reshape(len(x), -1) for x in (is_taken_BEC, ranked_BEC))
    slot_BSk, is_kept_BSk = (x.reshape(experts_BSk.shape) for x in (slot_BN, is_kept_BN))
    choice_BQ = jnp.take_along_axis(order_BN, ranked_BQ, axis=1)
    return Routing(choice_BQ, is_taken_BQ, slot_BSk, is_kept_BSk)


def _exchanged(x_BECD: jax.Array, *first: str | None) -> jax.Array:
    """Moves tokens from one layout to the other: by rows or by experts.

    Constraining both layouts leaves only the exchange between them. Otherwise the compiler picks
    separate layouts for look-ups and products, and gathers all tokens between them.
    """
    before = BY_EXPERTS if first == BY_ROWS else BY_ROWS
    return constrain(constrain(x_BECD, *before, None, None), *first, None, None)
