"""A mixture of experts: each token takes the few feed-forward parts that its router prefers.

Letters besides those of `trainer/model/__init__.py`:

    E experts     N choices of a sequence (S times the experts of a token)
    C room of an expert in a sequence     P places in all (E C)

Room is counted in each sequence by itself, so that what a token gets depends neither on the mesh
nor on the sequences beside it. Where there is room for all, moe_dropless.py does without places.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.model import Model
from trainer.contract.planning.parameter_shapes import hidden_parts, room
from trainer.model import moe_dropless
from trainer.model.attention import residual_gain
from trainer.model.layers import Projection
from trainer.model.mlp import ACTIVATIONS
from trainer.model.moe_dropless import LookUp, taken
from trainer.model.sharding import constrain, gathered, rows_are_split

BY_ROWS, BY_EXPERTS = ("batch", None), ("expert_batch", "expert")
"""How the first two dims of (B, E, C, ...) lie: each device with all tokens of its rows, or with
the tokens of its experts from more rows."""


class MoE(nnx.Module):
    """Stands where a feed-forward part does."""

    def __init__(self, rngs: nnx.Rngs, model: Model, kind: str = "room"):
        """`kind`: how tokens come to their experts, by the name that the plan has for it."""
        assert model.experts
        self.settings, self.by = model.experts, kind
        self.parts, self.kind = hidden_parts(model), model.feed_forward
        width, hidden, count = model.d_model, model.d_ff, self.settings.count
        self.router = Projection(rngs, (width, count), ("embed", "router"))
        for part in self.parts:
            setattr(self, part, _Kernel(rngs, (count, width, hidden), moe_dropless.INWARD))
        gain = residual_gain(model)
        self.down = _Kernel(rngs, (count, hidden, width), moe_dropless.OUTWARD, gain)

    def __call__(self, x_BSD: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(B, S, D), and of each sequence how uneven its choices are (B,): 1 is even."""
        logits_BSE = self.router(x_BSD).astype(jnp.float32)
        chosen_BSk, experts_BSk = jax.lax.top_k(logits_BSE, self.settings.per_token)
        weights_BSk = jax.nn.softmax(chosen_BSk, axis=-1).astype(x_BSD.dtype)
        unevenness_B = _load_balance_loss(logits_BSE, experts_BSk.reshape(len(x_BSD), -1))
        if self.by == "ragged" and rows_are_split(len(x_BSD)):
            return self._in_groups(x_BSD, experts_BSk, weights_BSk), unevenness_B
        return self._in_places(x_BSD, experts_BSk, weights_BSk), unevenness_B

    def _in_groups(
        self, x_BSD: jax.Array, experts_BSk: jax.Array, weights_BSk: jax.Array
    ) -> jax.Array:
        inward_EDF = [getattr(self, part).cast(x_BSD.dtype) for part in self.parts]
        down_EFD, activation = self.down.cast(x_BSD.dtype), ACTIVATIONS[self.kind]
        return moe_dropless.feed(activation, x_BSD, experts_BSk, weights_BSk, inward_EDF, down_EFD)

    def _in_places(
        self, x_BSD: jax.Array, experts_BSk: jax.Array, weights_BSk: jax.Array
    ) -> jax.Array:
        places = room(self.settings, x_BSD.shape[1])
        experts_BN = experts_BSk.reshape(len(x_BSD), -1)
        of_places, of_choices = _look_ups(experts_BN, self.settings.count, places)

        repeated_BND = jnp.repeat(x_BSD, self.settings.per_token, axis=1)
        placed_BPD = taken(constrain(repeated_BND, "batch", None, None), of_places, of_choices)
        placed_BECD = placed_BPD.reshape(len(x_BSD), -1, places, x_BSD.shape[-1])
        fed_BECD = _exchanged(self._feed(_exchanged(placed_BECD, *BY_EXPERTS)), *BY_ROWS)
        back_BND = taken(fed_BECD.reshape(placed_BPD.shape), of_choices, of_places)

        back_BSkD = back_BND.reshape(*weights_BSk.shape, -1)
        mixed_BSD = jnp.einsum("bskd,bsk->bsd", back_BSkD, weights_BSk)
        return constrain(mixed_BSD, "batch", None, None)

    def _feed(self, x_BECD: jax.Array) -> jax.Array:
        """Every expert on what has a place with it."""
        first, *rest = (
            jnp.einsum("becd,edf->becf", x_BECD, getattr(self, part)(x_BECD.dtype))
            for part in self.parts
        )
        hidden_BECF = ACTIVATIONS[self.kind](first)
        for other in rest:
            hidden_BECF = hidden_BECF * other
        hidden_BECF = constrain(hidden_BECF, *BY_EXPERTS, None, "mlp")
        return jnp.einsum("becf,efd->becd", hidden_BECF, self.down(x_BECD.dtype))


class _Kernel(nnx.Module):
    """One matrix for each expert."""

    def __init__(
        self, rngs: nnx.Rngs, shape: tuple[int, ...], axes: tuple[str, ...], gain: float = 1.0
    ):
        self.axes = axes
        kernel = gain / math.sqrt(shape[1]) * jax.random.normal(rngs.params(), shape)
        self.kernel = nnx.Param(kernel, out_sharding=axes)

    def __call__(self, dtype: jnp.dtype) -> jax.Array:
        return gathered(self.cast(dtype), self.axes)

    def cast(self, dtype: jnp.dtype) -> jax.Array:
        """As it is stored."""
        return self.kernel[...].astype(dtype)


def _look_ups(experts_BN: jax.Array, count: int, places: int) -> tuple[LookUp, LookUp]:
    """Of each place (B, P) its choice, and of each choice (B, N) its place: earlier ones first.

    A choice has none where its expert has no room left: the token goes without it.
    """
    chosen_BNE = experts_BN[:, :, None] == jnp.arange(count)
    counts_BE = jnp.sum(chosen_BNE, axis=1)
    first_BE = jnp.cumsum(counts_BE, axis=1) - counts_BE
    order_BN = jnp.argsort(experts_BN, axis=1, stable=True)

    rank_BN = jnp.argsort(order_BN, axis=1)
    number_BN = rank_BN - jnp.take_along_axis(first_BE, experts_BN, axis=1)
    is_kept_BN = number_BN < places
    of_choices = LookUp(jnp.where(is_kept_BN, experts_BN * places + number_BN, 0), is_kept_BN)

    rooms_C = jnp.arange(places)
    is_taken_BEC = rooms_C < counts_BE[:, :, None]
    ranked_BEC = jnp.where(is_taken_BEC, first_BE[:, :, None] + rooms_C, 0)
    is_taken_BP, ranked_BP = (x.reshape(len(x), -1) for x in (is_taken_BEC, ranked_BEC))
    return LookUp(jnp.take_along_axis(order_BN, ranked_BP, axis=1), is_taken_BP), of_choices


def _exchanged(x_BECD: jax.Array, *first: str | None) -> jax.Array:
    """Laid out the other way, by rows or by experts.

    Both ways are said, so that nothing else happens between them: left to itself, the compiler lets
    look-ups and products each have what they like, and gathers all tokens in between.
    """
    before = BY_EXPERTS if first == BY_ROWS else BY_ROWS
    return constrain(constrain(x_BECD, *before, None, None), *first, None, None)


def _load_balance_loss(logits_BSE: jax.Array, experts_BN: jax.Array) -> jax.Array:
    """(B,): over the experts, share of the choices times mean probability, summed, times E.

    The balancing loss of the Switch Transformer (arXiv:2101.03961, equation 4), of each sequence.
    """
    count = logits_BSE.shape[-1]
    share_BE = jnp.mean(experts_BN[:, :, None] == jnp.arange(count), axis=1, dtype=jnp.float32)
    probability_BE = jnp.mean(jax.nn.softmax(logits_BSE, axis=-1), axis=1)
    return count * jnp.sum(share_BE * probability_BE, axis=-1)
