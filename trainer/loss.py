"""Cross-entropy of the next token, in float32 and over chunks of the sequence."""

import jax
import jax.numpy as jnp

from trainer.data.packing import Batch
from trainer.model import Decoder

LOGIT_BYTES = 256 * 2**20
"""Of one chunk's float32 logits over all devices that share rows; more is cut into chunks."""


def loss_sum(model: Decoder, batch: Batch, dropout_keys_B: jax.Array | None = None) -> jax.Array:
    """Sum over the targets of a batch (B, S) of weight times cross-entropy, in nats."""
    features_BSD = model(batch.tokens, batch.segments, batch.positions, dropout_keys_B)
    chunks = chunk_count(batch.tokens.shape, model.vocabulary.padded)

    @jax.checkpoint
    def one_chunk(total: jax.Array, chunk: tuple[jax.Array, jax.Array, jax.Array]):
        features_BSD, targets_BS, weights_BS = chunk
        losses_BS = cross_entropy(model.logits(features_BSD), targets_BS)
        return total + jnp.sum(losses_BS * weights_BS), None

    parts = (features_BSD, batch.targets, batch.weights)
    if chunks == 1:
        return one_chunk(jnp.float32(0), parts)[0]
    split = jax.tree.map(lambda x: _leading_chunks(x, chunks), parts)
    written_out = not model.model.scan_layers
    return jax.lax.scan(one_chunk, jnp.float32(0), split, unroll=written_out)[0]


def cross_entropy(logits_BSV: jax.Array, targets_BS: jax.Array) -> jax.Array:
    """(B, S): nats per target. By comparison, not look-up: V may be split over devices."""
    is_target_BSV = jnp.arange(logits_BSV.shape[-1]) == targets_BS[:, :, None]
    target_BS = jnp.sum(jnp.where(is_target_BSV, logits_BSV, 0), axis=-1)
    return jax.nn.logsumexp(logits_BSV, axis=-1) - target_BS


def chunk_count(shape_BS: tuple[int, ...], vocab: int) -> int:
    """The fewest equal chunks of the sequence whose logits stay below LOGIT_BYTES per row shard."""
    rows, length = shape_BS
    mesh = jax.sharding.get_abstract_mesh()
    shards = 1 if mesh.empty else mesh.shape["data"] * mesh.shape["fsdp"]
    whole = -(-rows // shards) * length * vocab * 4
    counts = (n for n in range(1, length + 1) if length % n == 0)
    return next((n for n in counts if whole // n <= LOGIT_BYTES), length)


def _leading_chunks(x_BSx: jax.Array, chunks: int) -> jax.Array:
    """(chunks, B, S / chunks, ...)."""
    rows, length, *rest = x_BSx.shape
    return jnp.moveaxis(x_BSx.reshape(rows, chunks, length // chunks, *rest), 1, 0)
