"""Loss on documents that training never sees."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from trainer import distributed
from trainer import mesh as meshes
from trainer.data.packing import Batch
from trainer.loss import loss_sum
from trainer.model import Params
from trainer.train_step import Trainable

Sums = tuple[jax.Array, jax.Array]
"""Of the loss, and of the targets' weights."""
LARGEST_EXPONENT = 700
"""Of a perplexity that is still a float64."""


@dataclass(frozen=True)
class Evaluation:
    eval_loss: float
    """Mean cross-entropy per target, in nats."""
    eval_losses: Mapping[str, float] = field(default_factory=dict)
    """Of each source of a mixture by its name; then the other one is their mean by weight."""

    @property
    def eval_perplexity(self) -> float:
        return math.exp(min(self.eval_loss, LARGEST_EXPONENT))


def combined(found: Sequence[Evaluation | None], sources: Mapping[str, int]) -> Evaluation | None:
    """That of all sources with something held out; `sources` has their weights by name."""
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
    """Compiled once, at the first evaluation; every process must call it."""

    def __init__(self, trainable: Trainable):
        whole = meshes.replicated(trainable.mesh)
        self._network, self._deadlines = trainable.network, trainable.job.deadlines
        self._add = jax.jit(
            self._sums,
            in_shardings=(
                trainable.shardings.weights,
                meshes.batch_shardings(trainable.mesh),
                (whole, whole),
            ),
            out_shardings=(whole, whole),
        )
        self._zeros = jax.jit(lambda: (jnp.float32(0), jnp.float32(0)), out_shardings=whole)
        self._compiled: Callable[..., Sums] | None = None

    def evaluate(self, params: Params, batches: Iterable[Batch]) -> Evaluation | None:
        """The mean over all targets of the batches; None without any."""
        sums = self._zeros()
        for batch in batches:
            sums = self._ready(params, batch)(params, batch, sums)
        loss, targets = (float(total) for total in sums)
        return Evaluation(loss / targets) if targets else None

    def _ready(self, params: Params, batch: Batch) -> Callable[..., Sums]:
        if self._compiled is None:
            self._compiled = self.compiled(params, batch)
            distributed.wait_for_compilers("first evaluation", self._deadlines)
        return self._compiled

    def compiled(self, params: Any, batch: Batch) -> jax.stages.Compiled:
        """What adds up one batch like `batch`; of both only shapes are used."""
        zero = jax.ShapeDtypeStruct((), jnp.float32)
        return self._add.lower(params, batch, (zero, zero)).compile()

    def _sums(self, params: Params, batch: Batch, before: Sums) -> Sums:
        """With those of a batch (M, B, S) added."""

        def add(before: Sums, micro: Batch) -> tuple[Sums, None]:
            loss = loss_sum(self._network.bind(params), micro)
            return (before[0] + loss, before[1] + jnp.sum(micro.weights)), None

        if batch.tokens.shape[0] == 1:
            return add(before, jax.tree.map(lambda x: x[0], batch))[0]
        return jax.lax.scan(add, before, batch)[0]
