"""The stacks of a model's layers: layers of a stack have arrays of the same shapes."""

from typing import NamedTuple

from trainer.contract.config.model import Model

LAYERS, DENSE_LAYERS = "layers", "dense_layers"


class Stack(NamedTuple):
    """Consecutive layers whose arrays are stacked."""

    name: str
    """First part of the names of its parameters."""
    model: Model
    """The job's model, or that of the dense layers, which has no experts."""
    first: int
    """Number of its first layer, counted from 0."""
    count: int


def layer_stacks(model: Model) -> list[Stack]:
    """Returns the stacks in their order: the dense layers before those with experts, if any.

    The last stack is that of all other layers.
    """
    if model.moe is None or model.moe.dense_layers == 0:
        return [Stack(LAYERS, model, 0, model.layers)]
    count = model.moe.dense_layers
    dense = model.model_copy(update={"moe": None, "d_ff": model.moe.dense_d_ff})
    return [
        Stack(DENSE_LAYERS, dense, 0, count),
        Stack(LAYERS, model, count, model.layers - count),
    ]
