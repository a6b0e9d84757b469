"""Reads the model that a config.json describes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trainer.contract.config.errors import explain, found
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import Model
from trainer.contract.hugging_face.config import (
    CONFIG,
    DEFAULT,
    ROPE_KEYS,
    ROPE_NAMES,
    differences,
    filled_in,
    read,
)
from trainer.contract.hugging_face.families import FAMILIES, Family

ROPE_OF_JOB = {f"rope_scaling.{ours}": theirs for theirs, ours in ROPE_NAMES.items()} | {
    "rope_scaling.kind": "rope_type"
}
"""Key of the job's `model` -> key of a RoPE section."""


def read_model(folder: Path) -> Model:
    """Returns the model that a folder's config.json describes.

    Raises ConfigError for a model that is none of the families, or differs from its own in a key.
    """
    source = folder / CONFIG
    config = read(source)
    kind = config.get("model_type")
    ours = next((one for one in FAMILIES if one.kind == kind), None)
    if ours is None:
        known = ", ".join(one.kind for one in FAMILIES)
        raise ConfigError([f"{source}: model_type is {found(kind)}. Expected one of: {known}"])
    given = filled_in(ours, config)
    rope = given.get("rope_type", DEFAULT)
    if rope != DEFAULT and rope not in ROPE_KEYS:
        known = ", ".join((DEFAULT, *ROPE_KEYS))
        raise ConfigError([f"{source}: rope_type is {found(rope)}. Expected one of: {known}"])
    try:
        model = Model.model_validate(_keys_of_job(ours, given))
    except ValidationError as error:
        problems = [one for error in error.errors() for one in _problems(ours, given, error)]
        raise ConfigError([f"{source}: {problem}" for problem in problems]) from None
    unlike = [f"{kind} does not support {trait}" for trait in ours.unlike(model)]
    if problems := [*unlike, *differences(ours, given, model)]:
        raise ConfigError([f"{source}: {problem}" for problem in problems])
    return model


def _keys_of_job(ours: Family, given: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of the job's `model` for a config of a family."""
    flat = {**ours.values, **{ours.keys[key]: given[key] for key in ours.keys.keys() & given}}
    rope = ROPE_KEYS.get(given.get("rope_type", DEFAULT), {})
    if rope:
        flat["rope_scaling.kind"] = given["rope_type"]
    flat |= {f"rope_scaling.{rope[key]}": given[key] for key in rope.keys() & given}
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        section, _, key = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[key] = value
    return nested


def _problems(ours: Family, given: dict[str, Any], error: ErrorDetails) -> Iterator[str]:
    """Yields the problems of an error of the job's `model`, with the names of config.json."""
    names = {**ROPE_OF_JOB, **{key: theirs for theirs, key in ours.keys.items()}}
    for problem in explain(Model, error):
        name = names.get(".".join(map(str, problem.path)))
        # A key that is not given is derived from a wrong one.
        if name and (name in given or problem.is_missing):
            yield f"{name}: {problem.message}"
