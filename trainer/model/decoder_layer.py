"""A layer of the decoder: attention and a feed-forward part.

The letters of dims are those of trainer/model/__init__.py.
"""

import jax
from flax import nnx

from trainer.contract.config.model import Model
from trainer.contract.planning.parameter_shapes import norm_places
from trainer.contract.planning.plan import MoEKind
from trainer.model import dropout
from trainer.model.attention import Attention, KeyValue
from trainer.model.attention_kernels import Attend
from trainer.model.latent_attention import LatentAttention
from trainer.model.layers import Norm
from trainer.model.mlp import MLP
from trainer.model.moe import MoE
from trainer.model.moe_routing import Balance
from trainer.model.remat import named
from trainer.model.sharding import constrain


class Layer(nnx.Module):
    """Attention and a feed-forward part, each with a norm of its input, its output or both."""

    def __init__(self, rngs: nnx.Rngs, model: Model, moe: MoEKind, chunks: int):
        self.rate = model.dropout
        before, after = norm_places(model)
        self.attention_norm = Norm(model, model.d_model) if before else None
        kind = Attention if model.latent_attention is None else LatentAttention
        self.attention = kind(rngs, model, chunks)
        self.attention_post_norm = Norm(model, model.d_model) if after else None
        self.mlp_norm = Norm(model, model.d_model) if before else None
        self.mlp_post_norm = Norm(model, model.d_model) if after else None
        is_moe = model.moe is not None
        self.mlp = MoE(rngs, model, moe) if is_moe else MLP(rngs, model, model.d_ff)

    def __call__(
        self,
        x_BSD: jax.Array,
        positions_BS: jax.Array,
        attend: Attend,
        window: int | None,
        number: jax.Array,
        dropout_keys_BS: jax.Array | None,
    ) -> tuple[jax.Array, Balance | None]:
        """Returns the output (B, S, D), and the balance of the experts or None without any.

        `window` is the layer's sliding window. `number` counts layers from 0.
        """
        normal_BSD = _normal(self.attention_norm, x_BSD)
        with jax.named_scope("attention"):
            mixed_BSD = self.attention(normal_BSD, positions_BS, attend, window)
            mixed_BSD = named(mixed_BSD, "attention_output")
        mixed_BSD = _normal(self.attention_post_norm, mixed_BSD)
        site = dropout.ATTENTION
        x_BSD = x_BSD + dropout.dropout(mixed_BSD, dropout_keys_BS, number, site, self.rate)
        x_BSD = constrain(x_BSD, "batch", "sequence", None)
        normal_BSD = _normal(self.mlp_norm, x_BSD)
        with jax.named_scope("mlp"):
            out_BSD, balance = self._apply_mlp(normal_BSD)
        out_BSD = _normal(self.mlp_post_norm, out_BSD)
        site = dropout.MLP
        x_BSD = x_BSD + dropout.dropout(out_BSD, dropout_keys_BS, number, site, self.rate)
        return constrain(x_BSD, "batch", "sequence", None), balance

    def _apply_mlp(self, x_BSD: jax.Array) -> tuple[jax.Array, Balance | None]:
        if isinstance(self.mlp, MoE):
            return self.mlp(x_BSD)
        return self.mlp(x_BSD), None

    def decode(
        self,
        x_B1D: jax.Array,
        position: jax.Array,
        mask_B11W: jax.Array,
        cache_BWKh: KeyValue,
        window: int | None,
    ) -> tuple[jax.Array, KeyValue]:
        """Returns the output (B, 1, D) at `position`, and the layer's updated cache."""
        normal_B1D = _normal(self.attention_norm, x_B1D)
        mixed_B1D, cache_BWKh = self.attention.decode(
            normal_B1D, position, mask_B11W, cache_BWKh, window
        )
        x_B1D = x_B1D + _normal(self.attention_post_norm, mixed_B1D)
        out_B1D, _ = self._apply_mlp(_normal(self.mlp_norm, x_B1D))
        return x_B1D + _normal(self.mlp_post_norm, out_B1D), cache_BWKh


def _normal(norm: Norm | None, x_BSD: jax.Array) -> jax.Array:
    """Returns `x_BSD` normalized, or itself where the layer has no norm."""
    if norm is None:
        return x_BSD
    with jax.named_scope("norm"):
        return norm(x_BSD)
