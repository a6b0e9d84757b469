"""The loss of a micro-batch."""

import jax
import jax.numpy as jnp

from trainer.data.packing import Batch
from trainer.model import AnyNetwork, Params
from trainer.model.dropout import row_keys
from trainer.step.distillation import Teacher
from trainer.step.dpo import pair_sums
from trainer.step.loss import loss_and_load
from trainer.step.train_state import Counts


def micro_batch_loss(
    network: AnyNetwork,
    params: Params,
    micro: Batch,
    step: jax.Array,
    teacher: Teacher | None = None,
    teacher_weights: Params | None = None,
) -> tuple[jax.Array, Counts]:
    """Returns the loss of a micro-batch (B, S), summed over targets or pairs in nats, and counts.

    Micro-batches (M, B, S) pass through the stages of a pipeline.
    `step` is the number of updates done, which seeds the dropout of the next one.
    """
    if network.job.dpo:
        loss, *counts = pair_sums(network, params, micro, network.job.dpo.beta)
        return loss, Counts(*counts)
    keys = row_keys_of(network, step, micro)
    theirs = None
    if teacher and teacher_weights:
        theirs, params = teacher.run_before(params, teacher_weights, micro)
    z_loss = network.job.optimizer.z_loss
    loss, load = loss_and_load(network.bind(params), micro, keys, z_loss, theirs)
    return loss, Counts(jnp.sum(micro.weights), load=load)


def row_keys_of(network: AnyNetwork, step: jax.Array, batch: Batch) -> jax.Array | None:
    """Returns one random key per row, or None for a network without random numbers."""
    return row_keys(network.job.seed, step, batch.examples) if network.job.is_random else None
