"""What a step changes and reports: the state of a run, and the metrics of a step."""

from typing import Any, Generic, NamedTuple, TypeVar

import jax

Leaf = TypeVar("Leaf")


class Counts(NamedTuple):
    """Sums over the targets, or over the pairs of DPO."""

    targets: jax.Array
    """Weight of the targets, or number of pairs: what the loss is a mean over."""
    margin: jax.Array | None = None
    """Reward margins of the pairs; None without DPO."""
    correct: jax.Array | None = None
    """Number of pairs whose chosen completion has the higher reward; None without DPO."""
    load: jax.Array | None = None
    """Number of choices of each expert, (L, E); None unless biases balance the experts."""


class TrainState(NamedTuple, Generic[Leaf]):
    """Everything besides the job that a run's next steps depend on: arrays, shapes or shardings."""

    step: Leaf
    """Number of updates done."""
    params: dict[str, Leaf]
    optimizer: Any
    """State of optax, with the moments as dicts like `params`."""
    average: dict[str, Leaf] | None = None
    """Moving mean of the parameters; None if the job has none."""
    frozen_params: dict[str, Leaf] | None = None
    """Base model of a job that trains adapters, else None. It is never saved."""
    teacher: dict[str, Leaf] | None = None
    """Weights of the teacher of a distillation, else None. They are never saved."""

    @property
    def weights(self) -> dict[str, Leaf]:
        """Weights for evaluation, text generation and export."""
        return {
            **(self.frozen_params or {}),
            **(self.params if self.average is None else self.average),
        }

    @property
    def trainable(self) -> "TrainState[Leaf]":
        """The part of the state that a step changes and a checkpoint stores."""
        return self._replace(frozen_params=None, teacher=None)


class StepMetrics(NamedTuple):
    """Scalars of one step, on the devices."""

    loss: jax.Array
    grad_norm: jax.Array
    learning_rate: jax.Array
    tokens: jax.Array
    """Number of targets of weight 1 in the global batch, or of pairs."""
    examples: jax.Array
    """Digest of the example numbers, independent of their order."""
    applied: jax.Array
    """Whether the update was applied: loss and gradient are finite and within the limits."""
    request: jax.Array
    """Largest stop request of all processes: see trainer/distributed/stop_vote.py."""
    reward_margin: jax.Array | None = None
    """Mean reward margin of the pairs; None without DPO."""
    reward_accuracy: jax.Array | None = None
    """Share of the pairs whose chosen completion has the higher reward; None without DPO."""
