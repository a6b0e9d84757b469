"""The points of a sweep and their names: pure functions of the axes. Uses no files and no clock."""

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from trainer.contract.config.sweep import Axis, Draw
from trainer.contract.config.yaml import dump_inline

DIGITS = 3
"""Significant digits of a drawn number."""
TRIES = 100
"""Draws for each sample after which a range counts as too narrow."""
MOST_POINTS = 10_000
"""Each point is planned before the first one starts, and is a run of its own."""
LONGEST_NAME, LONGEST_VALUE, HASH_DIGITS = 100, 32, 8
WORD = re.compile(r"[A-Za-z0-9._]+")


class PointsError(ValueError):
    """Raised for axes that have no points, with one text per problem."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    name: str
    values: Mapping[str, Any]
    """The value of each swept key."""

    @property
    def overrides(self) -> list[str]:
        """The changes to the job, as on the command line."""
        changes = [f"{key}={dump_inline(value)}" for key, value in self.values.items()]
        return [*changes, f"name={self.name}"]


@dataclass(frozen=True)
class Grid:
    """Lists, whose product is taken, and ranges, from which `samples` draws are taken."""

    axes: Mapping[str, Axis]
    samples: int | None = None
    """Number of draws for each combination of listed values; they are the same for all."""
    seed: int = 0

    def points(self, sweep: str) -> list[Point]:
        """Returns the points in order, named by the sweep and their values. Raises PointsError."""
        if problems := list(self._problems()):
            raise PointsError(*problems)
        drawn = self._draws() if self._ranges else [{}]
        values = [
            {
                key: ({**dict(zip(self._lists, listed, strict=True)), **draw})[key]
                for key in self.axes
            }
            for listed in product(*self._lists.values())
            for draw in drawn
        ]
        return _named(sweep, list(self.axes), values)

    @property
    def _lists(self) -> dict[str, tuple[Any, ...]]:
        return {key: axis for key, axis in self.axes.items() if not isinstance(axis, Draw)}

    @property
    def _ranges(self) -> dict[str, Draw]:
        return {key: axis for key, axis in self.axes.items() if isinstance(axis, Draw)}

    def _problems(self) -> Iterator[str]:
        if not self.axes:
            yield (
                "an empty sweep: no key has several values. Give one a list, such as "
                "optimizer.learning_rate=1e-3,3e-3, or a range, such as "
                "optimizer.learning_rate=log(1e-4,1e-2) with --samples 8"
            )
        if self._ranges and self.samples is None:
            yield f"--samples: missing. It is the number of draws of {', '.join(self._ranges)}"
        if self.samples is not None and not self._ranges and self.axes:
            yield "--samples: no key has a range to draw from: log(LOW, HIGH) or uniform(LOW, HIGH)"
        count = (self.samples or 1) * math.prod(map(len, self._lists.values()))
        if count > MOST_POINTS:
            yield (
                f"{count:,} points, but a sweep has at most {MOST_POINTS:,}. List fewer values, or "
                "lower --samples"
            )
        for key, values in self._lists.items():
            texts = [dump_inline(value) for value in values]
            for text in dict.fromkeys(text for text in texts if texts.count(text) > 1):
                yield f"{key}: {text} is listed {texts.count(text)} times"

    def _draws(self) -> list[dict[str, float]]:
        """Returns distinct draws. A key's numbers depend on its range, its name and the seed."""
        assert self.samples is not None
        sources = {key: random.Random(f"{self.seed} {key}") for key in self._ranges}
        found: dict[tuple[float, ...], None] = {}
        for _ in range(TRIES * self.samples):
            if len(found) < self.samples:
                found[tuple(_draw(self._ranges[key], sources[key]) for key in sources)] = None
        if len(found) < self.samples:
            raise PointsError(
                f"--samples: {self.samples} samples, but the ranges have only {len(found)} "
                f"different values of {DIGITS} digits. Widen {', '.join(self._ranges)}"
            )
        return [dict(zip(sources, draw, strict=True)) for draw in found]


def labels(keys: Sequence[str]) -> dict[str, str]:
    """Returns the shortest end of each dotted key that no other key has."""
    ends = {key: list(_ends(key)) for key in keys}
    shared = Counter(end for of_key in ends.values() for end in of_key)
    return {key: next((end for end in ends[key] if shared[end] == 1), key) for key in keys}


def _ends(key: str) -> Iterator[str]:
    """Yields the ends of a dotted key, the shortest first."""
    parts = key.split(".")
    return (".".join(parts[begin:]) for begin in range(len(parts) - 1, -1, -1))


def _draw(axis: Draw, source: random.Random) -> float:
    share = source.random()
    if axis.kind == "log":
        number = axis.low * (axis.high / axis.low) ** share
    else:
        number = axis.low + (axis.high - axis.low) * share
    rounded = float(f"{number:.{DIGITS}g}")
    return min(max(rounded, axis.low), axis.high)


def _named(sweep: str, keys: Sequence[str], points: Sequence[Mapping[str, Any]]) -> list[Point]:
    short = labels(keys)
    named = [
        Point(_name(sweep, {short[key]: value for key, value in values.items()}), values)
        for values in points
    ]
    names = [point.name for point in named]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise PointsError(*(f"two points have the name {name}" for name in twice))
    return named


def _name(sweep: str, values: Mapping[str, Any]) -> str:
    """Returns a run's name, such as `mysweep-learning_rate_0.001-layers_4`."""
    parts = [f"{_word(label)}_{_label(value)}" for label, value in values.items()]
    name = "-".join([sweep, *parts])
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - HASH_DIGITS - 1]}-{_hash(name)}"


def _label(value: Any) -> str:
    """Returns a value as a part of a name; one that is not a number or a word gets a hash."""
    text = dump_inline(value)
    if isinstance(value, int | float) and math.isfinite(value):
        return text.replace("+", "")  # 1e+30
    is_word = WORD.fullmatch(text) and len(text) <= LONGEST_VALUE
    return text if is_word else f"{_word(text)}_{_hash(text)}"


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "_", text).strip("_")[:LONGEST_VALUE]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]
