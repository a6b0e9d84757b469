"""Loss on documents that training never sees."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from trainer import distributed
from trainer import mesh as meshes
from trainer.data.packing import Batch
from trainer.loss import loss_sum
from trainer.model import Params
from trainer.train_step import Trainable

LARGEST_EXPONENT = 700
"""Of a perplexity that is still a float64."""


@dataclass(frozen=True)
class Evaluation:
    eval_loss: float
    """Mean cross-entropy per target, in nats."""

    @property
    def eval_perplexity(self) -> float:
        return math.exp(min(self.eval_loss, LARGEST_EXPONENT))


class Evaluator:
    """Compiled once, at the first evaluation; every process must call it."""

    def __init__(self, trainable: Trainable):
        whole = meshes.replicated(trainable.mesh)
        self._network = trainable.network
        self._add = jax.jit(
            self._sums,
            in_shardings=(
                trainable.shardings.params,
                meshes.batch_sharding(trainable.mesh),
                (whole, whole),
            ),
            out_shardings=(whole, whole),
        )
        self._zeros = jax.jit(lambda: (jnp.float32(0), jnp.float32(0)), out_shardings=whole)
        self._compiled: Callable[..., tuple[jax.Array, jax.Array]] | None = None

    def evaluate(self, params: Params, batches: Iterable[Batch]) -> Evaluation | None:
        """The mean over all targets of the batches; None without any."""
        sums = self._zeros()
        for batch in batches:
            sums = self._ready(params, batch, sums)(params, batch, sums)
        loss, targets = (float(total) for total in sums)
        return Evaluation(loss / targets) if targets else None

    def _ready(self, *arguments: Any) -> Callable[..., tuple[jax.Array, jax.Array]]:
        if self._compiled is None:
            self._compiled = self._add.lower(*arguments).compile()
            # Collectives give up on a process that compiles longer than the others.
            distributed.barrier("first evaluation")
        return self._compiled

    def _sums(
        self, params: Params, batch: Batch, before: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        rows = jax.tree.map(lambda x: x[0], batch)
        loss = loss_sum(self._network.bind(params), rows)
        return before[0] + loss, before[1] + jnp.sum(rows.weights)
