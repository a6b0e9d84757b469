"""Cross-entropy of the next token, in float32 and over chunks of the tokens."""

import jax
import jax.numpy as jnp

from trainer.data.packing import Batch
from trainer.model import Decoder
from trainer.model.sharding import constrain, row_shards
from trainer.spec.footprint import LOGIT_BYTES


def loss_sum(
    model: Decoder, batch: Batch, dropout_keys_B: jax.Array | None = None, z_loss: float = 0.0
) -> jax.Array:
    """Sum over the targets of a batch (B, S) of weight times cross-entropy, in nats.

    `z_loss`, and how uneven the work of experts is, are felt in the gradient alone.
    """
    features_BSD, unevenness_B = model.features(
        batch.tokens, batch.segments, batch.positions, dropout_keys_B
    )
    balance = _balance(model, unevenness_B, batch.weights)
    parts = jax.tree.map(_by_shard, (features_BSD, batch.targets, batch.weights))
    chunks = chunk_count(parts[1].shape[1], model.vocabulary.padded)

    with jax.named_scope("loss"):
        kernel_RDV = model.output_kernels()

        @jax.checkpoint
        def one_chunk(total: jax.Array, chunk: tuple[jax.Array, jax.Array, jax.Array]):
            x_RTD, targets_RT, weights_RT = chunk
            losses_RT = cross_entropy(model.logits(x_RTD, kernel_RDV), targets_RT, z_loss)
            return total + jnp.sum(losses_RT * weights_RT), None

        if chunks == 1:
            return one_chunk(balance, parts)[0]
        split = jax.tree.map(lambda x: _leading_chunks(x, chunks), parts)
        written_out = not model.model.scan_layers
        return jax.lax.scan(one_chunk, balance, split, unroll=written_out)[0]


def _balance(model: Decoder, unevenness_B: jax.Array | None, weights_BS: jax.Array) -> jax.Array:
    """Zero, with the gradient of what evens out the experts, for each target."""
    experts = model.model.experts
    if unevenness_B is None or experts is None:
        return jnp.float32(0)
    return _felt(experts.balance_loss * jnp.sum(unevenness_B * jnp.sum(weights_BS, axis=1)))


def cross_entropy(logits_RTV: jax.Array, targets_RT: jax.Array, z_loss: float = 0.0) -> jax.Array:
    """(R, T): nats per target. By comparison, not look-up: V may be split over devices.

    The gradient is that of so much more as `z_loss` times the squared log of the softmax's sum,
    which holds logits near zero; the value stays the plain cross-entropy.
    """
    is_target_RTV = jnp.arange(logits_RTV.shape[-1]) == targets_RT[:, :, None]
    target_RT = jnp.sum(jnp.where(is_target_RTV, logits_RTV, 0), axis=-1)
    log_sum_RT = jax.nn.logsumexp(logits_RTV, axis=-1)
    if z_loss == 0:
        return log_sum_RT - target_RT
    return log_sum_RT - target_RT + _felt(z_loss * log_sum_RT**2)


def _felt(x: jax.Array) -> jax.Array:
    """Zero, with the gradient of `x`."""
    return x - jax.lax.stop_gradient(x)


def chunk_count(tokens: int, vocab: int) -> int:
    """The fewest equal chunks of a row shard's tokens whose logits stay below LOGIT_BYTES."""
    whole = tokens * vocab * 4
    counts = (n for n in range(1, tokens + 1) if tokens % n == 0)
    return next((n for n in counts if whole // n <= LOGIT_BYTES), tokens)


def _by_shard(x_BSx: jax.Array) -> jax.Array:
    """(R, T, ...): the tokens of each row shard."""
    x_RTx = x_BSx.reshape(row_shards(), -1, *x_BSx.shape[2:])
    return constrain(x_RTx, "batch", *[None] * (x_RTx.ndim - 1))


def _leading_chunks(x_RTx: jax.Array, chunks: int) -> jax.Array:
    """(chunks, R, T / chunks, ...)."""
    shards, tokens, *rest = x_RTx.shape
    return jnp.moveaxis(x_RTx.reshape(shards, chunks, tokens // chunks, *rest), 1, 0)
