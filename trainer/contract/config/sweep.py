"""The `sweep` section of a job file, and the grammar of the values of a swept key."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, field_validator

from trainer.contract.config import yaml
from trainer.contract.config.base import NonNegative, Positive, Section
from trainer.contract.config.errors import KeyedError, found

DRAW = re.compile(r"([A-Za-z_]+)\((.*)\)", re.DOTALL)
DRAWS = "log(LOW, HIGH) or uniform(LOW, HIGH)"
BRACKETS = {"(": ")", "[": "]", "{": "}"}
NOT_SWEPT = {
    "sweep": "a sweep does not sweep itself",
    "name": "a point is named by the sweep. Set the sweep's name with name=...",
    "stop_after_step": "early stopping sets it. Remove it, and say --early-stop",
}
"""Keys that a sweep sets itself, each with its error message."""


@dataclass(frozen=True)
class Draw:
    """A range of numbers from which values are drawn."""

    kind: Literal["log", "uniform"]
    """Whether the logarithm of the number or the number itself is uniform."""
    low: float
    high: float


Axis = tuple[Any, ...] | Draw
"""The values of a swept key: a list, or a range to draw from."""


def parse_axis(text: str) -> Axis:
    """Returns the values in the text after KEY=: `4,8`, `log(1e-4, 1e-2)`, `uniform(0, 0.2)`.

    Commas within brackets and quotes separate no values. Each value is YAML, as in an override.
    Raises ValueError.
    """
    parts = [part.strip() for part in _split(text)]
    if len(parts) == 1 and (draw := DRAW.fullmatch(parts[0])):
        return _draw(text.strip(), draw[1], draw[2])
    if len(parts) > 1 and "" in parts:
        raise ValueError("an empty value in the list")
    if any(DRAW.fullmatch(part) for part in parts):
        raise ValueError("a draw is not a value of a list. Give it a key of its own")
    return tuple(map(_value, parts))


def _draw(text: str, kind: str, bounds: str) -> Draw:
    if kind not in ("log", "uniform"):
        raise ValueError(f"expected {DRAWS}, found {text!r}. Quote it if it is text")
    numbers = [yaml.resolve(part.strip()) for part in bounds.split(",")]
    if len(numbers) != 2 or not all(map(_is_number, numbers)):
        raise ValueError(f"expected two numbers, {kind}(LOW, HIGH), found {text!r}")
    low, high = map(float, numbers)  # type: ignore[arg-type]
    if low >= high:
        raise ValueError(f"expected LOW below HIGH, found {text!r}")
    if kind == "log" and low <= 0:
        raise ValueError(f"expected LOW above 0, found {text!r}")
    return Draw(kind, low, high)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _value(text: str) -> Any:
    tree = yaml.parse(text)
    for _, _, message in tree.problems:
        raise ValueError(message)
    return tree.value


def _split(text: str) -> Iterator[str]:
    """Yields the parts between commas that are in no brackets and no quotes."""
    begin, closing, quote = 0, list[str](), ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and text[begin:index].rstrip()[-1:] in ("", *"[{,:"):
            quote = character
        elif character in BRACKETS:
            closing.append(BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        elif character == "," and not closing:
            yield text[begin:index]
            begin = index + 1
    yield text[begin:]


def check_key(key: str) -> None:
    """Raises ValueError for a key that cannot be swept."""
    if reason := NOT_SWEPT.get(key.partition(".")[0]):
        raise ValueError(reason)


class Sweep(Section):
    """The points of `launch sweep`. All other commands ignore this section."""

    values: dict[str, Any] = Field(
        description="Swept keys of the job, each with a list of values or, as on the command line, "
        "the text `4,8`, `log(LOW, HIGH)` or `uniform(LOW, HIGH)`."
    )
    samples: Positive | None = Field(
        default=None,
        description="Number of draws for each combination of listed values. Required by `log` and "
        "`uniform`.",
    )
    seed: NonNegative = Field(default=0, description="Seed of the draws.")
    early_stop: bool = Field(
        default=False,
        description="Whether only the better half of the points, by evaluation loss, continues at "
        "each of some steps (successive halving).",
    )

    @field_validator("values")
    @classmethod
    def _are_axes(cls, values: dict[str, Any]) -> dict[str, Any]:
        problems = []
        for key, given in values.items():
            try:
                check_key(key)
                _axis(given)
            except ValueError as error:
                problems.append((key, str(error)))
        if problems:
            raise KeyedError(*problems)
        return values

    @cached_property
    def axes(self) -> Mapping[str, Axis]:
        """The values of each swept key."""
        return {key: _axis(given) for key, given in self.values.items()}


def _axis(given: Any) -> Axis:
    if isinstance(given, list) and given:
        return tuple(given)
    if isinstance(given, str):
        return parse_axis(given)
    if isinstance(given, list | dict) or given is None:
        raise ValueError(f"expected a list of values, or {DRAWS}, found {found(given)}")
    return (given,)
