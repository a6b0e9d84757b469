"""Validation loss: the loss on documents that training never uses."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trainer.data.loader import batch_shardings
from trainer.data.packing import Batch
from trainer.distributed import initialize
from trainer.distributed import mesh as meshes
from trainer.model import Params
from trainer.programs import executables
from trainer.step.dpo import pair_sums
from trainer.step.local_sums import local_sums
from trainer.step.loss import loss_sum
from trainer.step.train_step import TrainProgram
from trainer.telemetry.metrics import Evaluation

Sums = tuple[jax.Array, jax.Array]
"""Sums of the loss and of the targets' weights, or over pairs."""


def combined(found: Sequence[Evaluation | None], sources: Mapping[str, int]) -> Evaluation | None:
    """Returns the weighted mean over all sources with held-out documents.

    `sources` has the weights by name. Returns None when no source has held-out documents.
    """
    if len(sources) == 1:
        return found[0]
    pairs = zip(sources, found, strict=True)
    losses = {name: one.eval_loss for name, one in pairs if one is not None}
    weight = sum(sources[name] for name in losses)
    if not weight:
        return None
    mean = sum(sources[name] * loss for name, loss in losses.items()) / weight
    return Evaluation(mean, losses)


class Evaluator:
    """Computes validation loss. Compiles once, at first use; every process must call it."""

    def __init__(self, program: TrainProgram):
        whole = meshes.replicated(program.mesh)
        self._program, self._network = program, program.network
        self._add = jax.jit(
            self._added,
            in_shardings=(
                program.shardings.weights,
                batch_shardings(program.mesh),
                (whole, whole),
            ),
            out_shardings=(whole, whole),
        )
        self._whole = whole
        self._compiled: Callable[..., Sums] | None = None

    def evaluate(self, params: Params, batches: Iterable[Batch]) -> Evaluation | None:
        """Returns the mean loss of all targets, or pairs, in the batches; None without any."""
        zero = jax.make_array_from_callback((), self._whole, lambda _: np.float32(0))
        sums = (zero, zero)
        for batch in batches:
            sums = self._ready(params, batch)(params, batch, sums)
        loss, targets = (float(total) for total in sums)
        return Evaluation(loss / targets) if targets else None

    def _ready(self, params: Params, batch: Batch) -> Callable[..., Sums]:
        if self._compiled is None:
            self._compiled = self.compiled(params, batch)
            initialize.wait_for_compilers("first evaluation", self._program.job.deadlines)
        return self._compiled

    def compiled(self, params: Any, batch: Batch) -> jax.stages.Compiled:
        """Compiles the sum over a batch like `batch`; only the arguments' shapes are used."""
        zero = jax.ShapeDtypeStruct((), jnp.float32)
        return executables.compiled(self._add, params, batch, (zero, zero))

    def _added(self, params: Params, batch: Batch, before: Sums) -> Sums:
        """Adds the sums of a batch (M, B, S) to those `before`."""
        if not self._program.sums_locally:
            return self._sums(params, batch, before)

        def sums(weights: Params, batch: Batch) -> tuple[Sums, Params]:
            return self._sums(weights, batch, (jnp.float32(0), jnp.float32(0))), {}

        shardings = self._program.parameter_shardings
        loss, targets = local_sums(self._program.mesh, shardings, sums, params, batch)[0]
        return before[0] + loss, before[1] + targets

    def _sums(self, params: Params, batch: Batch, before: Sums) -> Sums:
        """Adds the sums of a batch (M, B, S) to those `before`."""

        def add(before: Sums, micro: Batch) -> tuple[Sums, None]:
            if dpo := self._network.job.dpo:
                loss, targets, *_ = pair_sums(self._network, params, micro, dpo.beta)
            else:
                loss = loss_sum(self._network.bind(params), micro)
                targets = jnp.sum(micro.weights)
            return (before[0] + loss, before[1] + targets), None

        if self._program.is_pipelined:
            return add(before, batch)[0]
        if batch.tokens.shape[0] == 1:
            return add(before, jax.tree.map(lambda x: x[0], batch))[0]
        return jax.lax.scan(add, before, batch)[0]
