"""Direct preference optimization: the loss of pairs of a chosen and a rejected completion.

An example is a pair: see `pair_example`. The reference is the model without its adapters. The
letters of dims are those of trainer/model/__init__.py.

References:
    Equation 7 of https://arxiv.org/abs/2305.18290
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from trainer.contract.planning.lora import B
from trainer.data.packing import CHOSEN, Batch
from trainer.model import AnyNetwork, Params
from trainer.step.loss import losses_by_target


class PairSums(NamedTuple):
    """Sums over pairs."""

    loss: jax.Array
    """-log sigmoid(reward margin), in nats."""
    pairs: jax.Array
    margin: jax.Array
    """Reward margins: beta times the log-ratio of the chosen completion minus the rejected's."""
    correct: jax.Array
    """Number of pairs whose chosen completion has the higher reward."""


def pair_sums(network: AnyNetwork, params: Params, batch: Batch, beta: float) -> PairSums:
    """Returns the sums over a batch (B, S) of pairs; rows of padding do not count."""
    reference_B = _log_odds(network, _without_adapters(params), batch)
    # The barrier orders the two passes, whose collectives could otherwise overtake each other.
    params, reference_B = jax.lax.optimization_barrier((params, reference_B))
    margin_B = beta * (_log_odds(network, params, batch) - jax.lax.stop_gradient(reference_B))
    is_pair_B = jnp.any(batch.weights > 0, axis=1)
    with jax.named_scope("loss"):
        losses_B = -jax.nn.log_sigmoid(margin_B)
        found = (losses_B, jnp.ones_like(losses_B), margin_B, (margin_B > 0).astype(jnp.float32))
        return PairSums(*(jnp.sum(jnp.where(is_pair_B, x_B, 0)) for x_B in found))


def _log_odds(network: AnyNetwork, params: Params, batch: Batch) -> jax.Array:
    """Returns log p(chosen) - log p(rejected) of each pair, (B,)."""
    losses_BS = losses_by_target(network.bind(params), batch)
    return jnp.sum(jnp.where(batch.segments == CHOSEN, -losses_BS, losses_BS), axis=1)


def _without_adapters(params: Params) -> Params:
    """Returns the reference's parameters: an adapter whose B is zero adds nothing."""
    return {
        name: jnp.zeros_like(array) if name.endswith(B) else array for name, array in params.items()
    }
