"""Next-token cross-entropy, in float32 and over chunks of the tokens.

The letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.estimates.memory import LOGIT_BYTES
from trainer.data.packing import Batch
from trainer.model import Decoder
from trainer.model.custom import custom_losses
from trainer.model.moe_routing import Balance
from trainer.model.sharding import constrain, row_shards, token_shards
from trainer.step.distillation import TeacherFeatures, mixed

Rest = tuple[jax.Array, jax.Array, jax.Array | None]
"""Targets, weights, and the features of a teacher or None."""
Chunk = Callable[[jax.Array, jax.Array | None, jax.Array, Rest], jax.Array]
"""Function of the output kernels of the model and of a teacher or None, features and the rest."""


def loss_sum(
    model: Decoder | nnx.Module, batch: Batch, keys_B: jax.Array | None = None, z_loss: float = 0.0
) -> jax.Array:
    """Returns the sum over the targets of a batch (B, S) of weight times cross-entropy, in nats.

    See `loss_and_load`.
    """
    return loss_and_load(model, batch, keys_B, z_loss)[0]


def loss_and_load(
    model: Decoder | nnx.Module,
    batch: Batch,
    keys_B: jax.Array | None = None,
    z_loss: float = 0.0,
    teacher: TeacherFeatures | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Returns the loss, summed over the targets of a batch (B, S) in nats, and the experts' load.

    The load (L, E) is the number of choices of each expert, or None if no biases balance it.
    A batch (M, B, S) passes through the stages of a pipeline.
    `keys_B` are one random key per row for dropout; None disables dropout. `z_loss` is the weight
    of the z-loss: see `cross_entropy`. It and the load-balancing loss of experts affect only the
    gradient, not the value. With the features of a teacher, the loss is that of distillation. A
    custom model defines the loss of its targets itself.
    """
    if not isinstance(model, Decoder):
        return jnp.sum(custom_losses(model, batch, keys_B)), None
    features = model.pipelined_features if batch.tokens.ndim == 3 else model.features
    features_BSD, balance = features(batch.tokens, batch.segments, batch.positions, keys_B)
    total = loss_of_features(model, features_BSD, batch, z_loss, teacher)
    load = None if balance is None else balance.load
    return balancing(model, balance, batch.weights) + total, load


def loss_of_features(
    model: Decoder,
    features_BSD: jax.Array,
    batch: Batch,
    z_loss: float = 0.0,
    teacher: TeacherFeatures | None = None,
) -> jax.Array:
    """Returns the loss of features, (B, S, D) or (M, B, S, D): see `loss_and_load`.

    It lacks the gradient of the load-balancing loss.
    """
    with jax.named_scope("loss"):
        # The barrier also holds in the backward pass: the kernel's whole gradient is reduced to the
        # device's shard before the gradient of the features continues into the layers.
        features_BSD, kernel_DV = jax.lax.optimization_barrier((features_BSD, model.output_kernel))
        if batch.tokens.ndim == 3:
            x_MIRTD, rest = jax.vmap(partial(_chunks, model))(features_BSD, batch)
            x_IRTD, rest = jax.tree.map(_joined, (x_MIRTD, rest))
        else:
            x_IRTD, rest = _chunks(model, features_BSD, batch, teacher)

        def one_chunk(
            kernel_RDV: jax.Array, their_kernel_RDV: jax.Array | None, x_RTD: jax.Array, rest: Rest
        ) -> jax.Array:
            targets_RT, weights_RT, their_x_RTD = rest
            logits_RTV = model.logits(x_RTD, kernel_RDV)
            losses_RT = cross_entropy(logits_RTV, targets_RT, z_loss)
            if teacher:
                assert their_x_RTD is not None
                theirs_RTV = teacher.model.logits(their_x_RTD, their_kernel_RDV)
                losses_RT = mixed(teacher.settings, losses_RT, logits_RTV, theirs_RTV)
            return jnp.sum(losses_RT * weights_RT)

        kernel_RDV = model.output_kernels(kernel_DV)
        their_kernel_RDV = teacher and teacher.model.output_kernels(teacher.model.output_kernel)
        return _sum_of_chunks(one_chunk, _loop(model), kernel_RDV, their_kernel_RDV, x_IRTD, rest)


def likelihoods_by_row(
    model: Decoder | nnx.Module, batch: Batch
) -> tuple[jax.Array, jax.Array | None]:
    """Returns the log-likelihood of each row's targets, in nats, and whether all are likeliest.

    Both are (B,), and only of targets with weight 1. Without dropout. The second is None for a
    custom model, which computes only losses.
    """
    if not isinstance(model, Decoder):
        return -jnp.sum(custom_losses(model, batch), axis=1), None

    def score(logits_RTV: jax.Array, targets_RT: jax.Array, weights_RT: jax.Array) -> Any:
        is_less_likely_RT = _target_logits(logits_RTV, targets_RT) < jnp.max(logits_RTV, axis=-1)
        return (
            cross_entropy(logits_RTV, targets_RT) * weights_RT,
            is_less_likely_RT & (weights_RT > 0),
        )

    losses_BS, is_less_likely_BS = _by_target(model, batch, score)
    return -jnp.sum(losses_BS, axis=1), ~jnp.any(is_less_likely_BS, axis=1)


def losses_by_target(model: Decoder | nnx.Module, batch: Batch) -> jax.Array:
    """Returns weight times cross-entropy of each target, in nats, (B, S).

    Without dropout. A gradient computes the logits again instead of keeping them.
    """
    if not isinstance(model, Decoder):
        return custom_losses(model, batch)

    def score(logits_RTV: jax.Array, targets_RT: jax.Array, weights_RT: jax.Array) -> jax.Array:
        return cross_entropy(logits_RTV, targets_RT) * weights_RT

    return _by_target(model, batch, score)


def _by_target(model: Decoder, batch: Batch, score: Callable[..., Any]) -> Any:
    """Returns what `score` computes of logits (R, T, V), targets and weights, as (B, S)."""
    features_BSD, _ = model.features(batch.tokens, batch.segments, batch.positions)
    with jax.named_scope("loss"):
        kernel_RDV = model.output_kernels(model.output_kernel)

        def one_chunk(_: None, chunk: tuple[jax.Array, Rest]) -> tuple[None, Any]:
            x_RTD, (targets_RT, weights_RT, _no_teacher) = chunk
            return None, score(model.logits(x_RTD, kernel_RDV), targets_RT, weights_RT)

        _, found_IRT = _loop(model)(
            jax.checkpoint(one_chunk), None, _chunks(model, features_BSD, batch)
        )
        return jax.tree.map(lambda x_IRT: _by_row(x_IRT, batch.tokens.shape), found_IRT)


def _loop(model: Decoder) -> Callable[..., Any]:
    return partial(jax.lax.scan, unroll=not model.model.scan_layers)


def _chunks(
    model: Decoder, features_BSD: jax.Array, batch: Batch, teacher: TeacherFeatures | None = None
) -> tuple[jax.Array, Rest]:
    """Returns the features and the rest, in chunks (I, R, T, ...).

    The logits of a chunk are those of the model and of its teacher.
    """
    rest = (batch.targets, batch.weights, teacher and teacher.features)
    parts = jax.tree.map(_by_shard, (features_BSD, rest))
    models = 1 if teacher is None else 2
    chunks = chunk_count(parts[0].shape[1], models * model.vocabulary.padded)
    return jax.tree.map(lambda x: _leading_chunks(x, chunks), parts)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum_of_chunks(
    one_chunk: Chunk,
    loop: Callable[..., Any],
    kernel_RDV: jax.Array,
    their_kernel_RDV: jax.Array | None,
    x_IRTD: jax.Array,
    rest: Rest,
) -> jax.Array:
    """Returns the sum over chunks of one_chunk(kernel_RDV, their_kernel_RDV, x_RTD, rest).

    The same loop computes the gradient. Logits are then computed once, not once for the loss and
    again for the gradient, and no kernel is kept for a later loop.
    """

    def body(total: jax.Array, chunk: tuple[jax.Array, Rest]) -> tuple[jax.Array, None]:
        return total + one_chunk(kernel_RDV, their_kernel_RDV, *chunk), None

    return loop(body, jnp.float32(0), (x_IRTD, rest))[0]


def _sum_and_gradients(
    one_chunk: Chunk,
    loop: Callable[..., Any],
    kernel_RDV: jax.Array,
    their_kernel_RDV: jax.Array | None,
    x_IRTD: jax.Array,
    rest: Rest,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    both = jax.value_and_grad(one_chunk, argnums=(0, 2))

    def body(sums: tuple[jax.Array, jax.Array], chunk: tuple[jax.Array, Rest]):
        loss, (kernel_gradient_RDV, x_gradient_RTD) = both(kernel_RDV, their_kernel_RDV, *chunk)
        return (sums[0] + loss, sums[1] + kernel_gradient_RDV), x_gradient_RTD

    zeros = (jnp.float32(0), jnp.zeros_like(kernel_RDV))
    (total, kernel_gradient_RDV), x_gradient_IRTD = loop(body, zeros, (x_IRTD, rest))
    return total, (kernel_gradient_RDV, x_gradient_IRTD)


def _scaled(
    one_chunk: Chunk,
    loop: Callable[..., Any],
    gradients: tuple[jax.Array, jax.Array],
    factor: jax.Array,
) -> tuple[jax.Array, None, jax.Array, None]:
    kernel_gradient_RDV, x_gradient_IRTD = (
        (factor * gradient).astype(gradient.dtype) for gradient in gradients
    )
    return kernel_gradient_RDV, None, x_gradient_IRTD, None


_sum_of_chunks.defvjp(_sum_and_gradients, _scaled)


def balancing(model: Decoder, balance: Balance | None, weights_BS: jax.Array) -> jax.Array:
    """Returns 0 with the gradient of the load-balancing loss, summed over the targets."""
    moe = model.model.moe
    if balance is None or moe is None:
        return jnp.float32(0)
    return _gradient_only(
        moe.load_balance_loss_weight * jnp.sum(balance.loss * jnp.sum(weights_BS, axis=-1))
    )


def cross_entropy(logits_RTV: jax.Array, targets_RT: jax.Array, z_loss: float = 0.0) -> jax.Array:
    """Returns the cross-entropy of each target, in nats, (R, T).

    R are token shards and T the tokens of one. Targets are compared, not looked up: V may be split
    over devices. The gradient includes that of `z_loss` times the squared log of the softmax's sum,
    which keeps logits near zero. The value is the plain cross-entropy.

    References:
        z-loss: PaLM, section 5, https://arxiv.org/abs/2204.02311
    """
    target_RT = _target_logits(logits_RTV, targets_RT)
    log_sum_RT = jax.nn.logsumexp(logits_RTV, axis=-1)
    if z_loss == 0:
        return log_sum_RT - target_RT
    return log_sum_RT - target_RT + _gradient_only(z_loss * log_sum_RT**2)


def _target_logits(logits_RTV: jax.Array, targets_RT: jax.Array) -> jax.Array:
    """Returns the logit of each target, (R, T)."""
    is_target_RTV = jnp.arange(logits_RTV.shape[-1]) == targets_RT[:, :, None]
    return jnp.sum(jnp.where(is_target_RTV, logits_RTV, 0), axis=-1)


def _gradient_only(x: jax.Array) -> jax.Array:
    """Returns 0 with the gradient of `x`: adds a term to the gradient, not to the reported loss."""
    return x - jax.lax.stop_gradient(x)


def chunk_count(tokens: int, vocab: int) -> int:
    """Returns the least number of equal chunks of `tokens` whose logits fit in LOGIT_BYTES."""
    whole = tokens * vocab * 4
    counts = (n for n in range(1, tokens + 1) if tokens % n == 0)
    return next((n for n in counts if whole // n <= LOGIT_BYTES), tokens)


def _by_shard(x_BSx: jax.Array) -> jax.Array:
    """Returns the tokens of each token shard, (R, T, ...)."""
    (_, length, *rest), rows = x_BSx.shape, row_shards()
    parts = token_shards() // rows
    if parts > 1:
        # A device has its own positions of all its rows: they become contiguous.
        x_BSx = x_BSx.reshape(rows, -1, parts, length // parts, *rest).swapaxes(1, 2)
    x_RTx = x_BSx.reshape(rows * parts, -1, *rest)
    return constrain(x_RTx, "tokens", *[None] * (x_RTx.ndim - 1))


def _leading_chunks(x_RTx: jax.Array, chunks: int) -> jax.Array:
    """Splits T into chunks: (chunks, R, T / chunks, ...)."""
    shards, tokens, *rest = x_RTx.shape
    return jnp.moveaxis(x_RTx.reshape(shards, chunks, tokens // chunks, *rest), 1, 0)


def _joined(x_MIx: jax.Array) -> jax.Array:
    """Joins the chunks of all micro-batches."""
    return x_MIx.reshape(-1, *x_MIx.shape[2:])


def _by_row(x_IRT: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Inverts `_by_shard` and `_leading_chunks`: returns (B, S), which is `shape`."""
    x_RT = jnp.moveaxis(x_IRT, 0, 1).reshape(token_shards(), -1)
    (_, length), rows = shape, row_shards()
    parts = token_shards() // rows
    x_BS = x_RT.reshape(rows, parts, -1, length // parts).swapaxes(1, 2).reshape(shape)
    return constrain(x_BS, "batch", "sequence")
