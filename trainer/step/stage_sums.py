"""Loss and gradients of a batch on stages that run forward and backward passes in turn.

The letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from trainer.contract.planning.layer_stacks import LAYERS
from trainer.data.packing import Batch
from trainer.model import Network, Params, dropout
from trainer.model.pipeline_1f1b import Parts, Sums, sums_over_stages
from trainer.step.loss import balancing, loss_of_features

Rows = tuple[Batch, jax.Array | None]
"""A batch, and a random key per row or None without dropout."""


def stage_sums(
    network: Network,
    params: Params,
    frozen: Mapping[str, jax.Array],
    batch: Batch,
    keys_MB: jax.Array | None,
    placed: Callable[[Params], Params],
) -> Sums:
    """Returns the sums over a batch (M, B, S); their counts are the experts' load (L, E) or None.

    `params` are the trained weights, and `frozen` the others. `placed` constrains the layout of
    gradients.
    """
    everything = {**frozen, **params}
    model, z_loss = network.bind(everything), network.job.optimizer.z_loss
    layers, weights = _parted(params)
    frozen_layers, _ = _parted(frozen)

    def embed(weights: Params, rows: Rows) -> jax.Array:
        batch, keys_B = rows
        bound = network.bind({**everything, **weights})
        keys_BS = dropout.token_keys(keys_B, batch.segments, batch.positions)
        return bound.embedded(batch.tokens, batch.positions, keys_BS)

    def stage(x_BSD: jax.Array, layers: Params, constants: Any, rows: Rows) -> Any:
        (batch, keys_B), (frozen, numbers_L) = rows, constants
        keys_BS = dropout.token_keys(keys_B, batch.segments, batch.positions)
        of_rows = (batch.segments, batch.positions, keys_BS)
        x_BSD, balance = model.apply_stage(x_BSD, {**frozen, **layers}, numbers_L, of_rows)
        load = None if balance is None else balance.load
        return (x_BSD, balancing(model, balance, batch.weights)), load

    def loss(weights: Params, x_BSD: jax.Array, rows: Rows) -> jax.Array:
        bound = network.bind({**everything, **weights})
        with jax.named_scope("norm"):
            features_BSD = bound.final_norm(x_BSD)
        return loss_of_features(bound, features_BSD, rows[0], z_loss)

    numbers_L = jnp.arange(model.model.layers)
    parts = Parts(embed, stage, loss, weights, layers, (frozen_layers, numbers_L))
    unroll = not model.model.scan_layers
    return sums_over_stages(parts, (batch, keys_MB), placed, unroll=unroll)


def _parted(weights: Mapping[str, jax.Array]) -> tuple[Params, Params]:
    """Splits weights into those of layers and the rest."""
    layers = {name: array for name, array in weights.items() if name.startswith(f"{LAYERS}.")}
    return layers, {name: array for name, array in weights.items() if name not in layers}
