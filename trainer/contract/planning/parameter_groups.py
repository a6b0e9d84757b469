"""Parameter groups: parameters with their own learning rate or weight decay."""

from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from trainer.contract.config.errors import suggest
from trainer.contract.config.optimizer import Optimizer
from trainer.contract.planning.parameter_shapes import BALANCING_BIAS


class Pull(NamedTuple):
    """The learning-rate factor and the weight decay of a parameter."""

    learning_rate_factor: float
    weight_decay: float


def pull(optimizer: Optimizer, name: str, axes: Collection[str]) -> Pull:
    """Returns the settings of a parameter with these logical axes.

    By default, weight decay excludes norms, biases and attention sinks: scales around one and
    offsets are not weights.
    """
    is_weight = "norm" not in axes and not name.endswith((".bias", ".sinks", BALANCING_BIAS))
    decay = optimizer.weight_decay if is_weight else 0.0
    for group in optimizer.param_groups:
        if fnmatchcase(name, group.pattern):
            own = group.weight_decay
            return Pull(group.learning_rate_factor, decay if own is None else own)
    return Pull(1.0, decay)


def problems(optimizer: Optimizer, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for each group without parameters; `names` are the trained ones."""
    seen: set[str] = set()
    for number, group in enumerate(optimizer.param_groups):
        matched = {name for name in names if fnmatchcase(name, group.pattern)}
        key = f"optimizer.param_groups.{number}.pattern"
        if not matched:
            hint = suggest(group.pattern, names) or f" The parameters: {', '.join(names)}"
            yield key, f"'{group.pattern}' matches no parameter.{hint}"
        elif matched <= seen:
            yield (
                key,
                f"all that '{group.pattern}' matches is in earlier groups, which take precedence",
            )
        seen |= matched
