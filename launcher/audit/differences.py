"""The first difference between what two computations of the same steps have recorded."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from launcher.audit.recorded import Recorded, RecordedStep
from trainer.contract.records.checkpoint_metadata import CheckpointMetadata
from trainer.contract.records.replay_file import Digests, StepDigests

Steps = Mapping[int, StepDigests]
"""The recorded steps of a replay, by number."""
MODULUS = 2**32


class Quantity(StrEnum):
    """What is compared of a step, in the order in which a step computes it."""

    EXAMPLES = "examples"
    LOSS = "loss"
    GRADIENTS = "gradients"
    GRAD_NORM = "grad_norm"
    STATE = "state"
    """Parameters and moments after the step."""


@dataclass(frozen=True)
class FirstDifference:
    """The first thing that differs between two computations of the same steps."""

    step: int
    quantity: Quantity
    arrays: tuple[str, ...] = ()
    """Arrays that differ; `name[3]` for layer 3 of an array that has all layers."""


def first_difference(recorded: Recorded, replay: Steps) -> FirstDifference | None:
    """Returns where a replay first differs from the record of the run; None when it never does.

    All bits of the state are compared where the run has a checkpoint, elsewhere only the examples,
    the loss and the norm of the gradient.
    """
    for number in range(recorded.first, recorded.last + 1):
        about = recorded.checkpoints.get(number)
        for found in _differences(recorded.steps[number], about, replay[number]):
            return found
    return None


def first_difference_of_replays(first: Steps, second: Steps) -> FirstDifference | None:
    """Returns where two replays first differ; None when no bit does."""
    for number, one in first.items():
        for found in _differences_of_step(one, second[number]):
            return found
    return None


def is_same_step(first: StepDigests, second: StepDigests) -> bool:
    """Returns whether two replays have computed a step alike, to the last bit."""
    return not any(_differences_of_step(first, second))


def _differences(
    recorded: RecordedStep, about: CheckpointMetadata | None, replay: StepDigests
) -> Iterator[FirstDifference]:
    for quantity in (Quantity.EXAMPLES, Quantity.LOSS, Quantity.GRAD_NORM):
        known = getattr(recorded, quantity)
        if known is not None and known != getattr(replay, quantity):
            yield FirstDifference(replay.step, quantity)
    if about and (arrays := _changed_state(about, replay.state)):
        yield FirstDifference(replay.step, Quantity.STATE, arrays)


def _differences_of_step(first: StepDigests, second: StepDigests) -> Iterator[FirstDifference]:
    for quantity in Quantity:
        one, other = getattr(first, quantity), getattr(second, quantity)
        if one != other:
            yield FirstDifference(first.step, quantity, tuple(_changed(one, other)))


def _changed_state(about: CheckpointMetadata, state: Digests) -> tuple[str, ...]:
    return tuple(
        name
        for name, array in about.arrays.items()
        if name not in state or sum(state[name]) % MODULUS != array.digest
    )


def _changed(one: object, other: object) -> Iterator[str]:
    """Yields the arrays whose digests differ, or their layers."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return
    for name, digests in one.items():
        pairs = list(zip(digests, other[name], strict=True))
        changed = [layer for layer, (a, b) in enumerate(pairs) if a != b]
        if len(pairs) == 1 and changed:
            yield name
        else:
            yield from (f"{name}[{layer}]" for layer in changed)
