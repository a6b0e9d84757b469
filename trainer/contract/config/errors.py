"""Schema errors as text: the value found, the value expected, and a suggestion."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag
from pydantic.fields import FieldInfo

from trainer.contract.config.yaml import KeyPath, dump

Problems = Iterator[tuple[str, str]]
"""Keys of a file, each with what is wrong with its value."""
NEAR, VERY_NEAR = 0.6, 0.8
"""Similarity of words by difflib, between 0 and 1."""


def suggest(word: str, known: Iterable[str], similarity: float = NEAR) -> str:
    """Returns " Did you mean 'x'?" for the nearest known word, or "" when none is near."""
    by_lower = {name.lower(): name for name in known}
    nearest = get_close_matches(word.lower(), by_lower, n=1, cutoff=similarity)
    return f" Did you mean '{by_lower[nearest[0]]}'?" if nearest else ""


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_LONGEST = 60
# What pydantic appends to the location of a dict's key.
_KEY = "[key]"


MISSING = "missing"


@dataclass(frozen=True)
class Explanation:
    """A problem of a value in a file."""

    path: KeyPath
    """Path of the key in the file."""
    message: str
    found: str | None = None
    """The value, as text; None for a missing key, and when the message names what is wrong."""
    expected: str | None = None
    """The values that are valid, as text; None when the message alone describes them."""
    is_missing: bool = False


class KeyedError(ValueError):
    """Raised by a validator of a whole section, with (key, message) pairs for some of its keys."""

    def __init__(self, *problems: tuple[str, str]):
        super().__init__("; ".join(f"{key}: {message}" for key, message in problems))
        self.problems = problems


def explain(schema: type[BaseModel], error: Any) -> list[Explanation]:
    """Converts one pydantic error to the problems that it stands for."""
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, KeyedError):
        path, _ = _locate(schema, error["loc"])
        return [Explanation((*path, key), message) for key, message in cause.problems]
    return [_explain_one(schema, error)]


def _explain_one(schema: type[BaseModel], error: Any) -> Explanation:
    path, annotation = _locate(schema, error["loc"])
    value, valid = found(error["input"]), describe(annotation) or None
    if _is_of_key(schema, error["loc"]):
        valid = f"{_describe_key(schema, error['loc'])} as the key"
        return Explanation(path, f"expected {valid}", str(path[-1]), valid)
    match error["type"]:
        case "missing":
            return Explanation(path, MISSING, None, valid, is_missing=True)
        case "extra_forbidden":
            return Explanation(path, _unknown(schema, path, error["loc"]), value)
        case "union_tag_not_found":
            valid, path = _one_of(_tags(annotation)), (*path, _tag_key(error))
            return Explanation(path, f"{MISSING}; {valid}", None, valid, is_missing=True)
        case "union_tag_invalid":
            path = (*path, _tag_key(error))
            return _bad_choice(path, error["ctx"]["tag"], _tags(annotation))
        case "literal_error" if not _is_of_several(annotation):
            return _bad_choice(path, error["input"], _choices(annotation))
        case "value_error":
            return Explanation(path, str(error["ctx"]["error"]), value)
    valid = valid or error["msg"]
    message = f"expected {valid}, found {value}{_yaml_hint(error['input'], annotation)}"
    return Explanation(path, message, value, valid)


def found(value: Any) -> str:
    """Returns a value as the user wrote it, shortened."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    text = repr(value) if isinstance(value, str) else dump(value).strip()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _bad_choice(path: KeyPath, value: Any, choices: list[str]) -> Explanation:
    hint = suggest(value, choices) if isinstance(value, str) else ""
    valid = _one_of(choices)
    message = f"{found(value)} is not {valid}.{hint}".removesuffix(".")
    return Explanation(path, message, found(value), valid)


def _one_of(choices: list[str]) -> str:
    return f"one of {', '.join(choices)}"


def _yaml_hint(value: Any, expected: Any) -> str:
    """Returns a hint for spellings that YAML 1.2 reads differently from YAML 1.1, or ""."""
    wanted = {kind for kind, _ in _members(expected)}
    if isinstance(value, float) and value.is_integer() and int in wanted:
        return f". Write {int(value)}"
    if isinstance(value, bool | int | float) and wanted == {str}:
        return f". Write '{found(value)}'"
    if not isinstance(value, str):
        return ""
    if bool in wanted and value.lower() in ("on", "yes", "off", "no", "y", "n"):
        return f". Write {'true' if value.lower() in ('on', 'yes', 'y') else 'false'}"
    bare = value.replace("_", "")
    return f". Write {bare}" if "_" in value and bare.isdigit() and wanted & {int, float} else ""


def describe(annotation: Any) -> str:
    """Returns a description of the values that a key may hold, or "" when there is none."""
    descriptions = [_describe_one(kind, bounds) for kind, bounds in _members(annotation)]
    return " or ".join(dict.fromkeys(descriptions)) if all(descriptions) else ""


def _describe_one(kind: Any, bounds: dict[str, Any]) -> str:
    if kind is NoneType:
        return "null"
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        return ("one of " if len(choices) > 1 else "") + ", ".join(map(str, choices))
    if _is_section(kind) or get_origin(kind) is dict:
        return "a section (key: value)"
    if get_origin(kind) in (list, tuple):
        least = bounds.get("min_length")
        return f"a list with at least {least} value{'s' * (least > 1)}" if least else "a list"
    return _KINDS[kind] + _bounds(bounds) if kind in _KINDS else ""


def _bounds(bounds: dict[str, Any]) -> str:
    formats = {
        "ge": "of at least {}", "gt": "above {}", "le": "of at most {}", "lt": "below {}",
        "pattern": "that matches {}", "min_length": "of at least {} characters",
    }  # fmt: skip
    texts = [formats[name].format(bound) for name, bound in bounds.items() if name in formats]
    return " " + " and ".join(texts) if texts else ""


def _locate(schema: type[BaseModel], loc: KeyPath) -> tuple[KeyPath, Any]:
    """Returns the path in the file of a pydantic location, and the annotation at that path.

    For a union, pydantic adds the tag or the type of the member, which is not in the file.
    """
    path: list[Any] = []
    here: Any = schema
    for part in loc:
        sections, tagged = _sections(here), _tagged(here)
        if part == _KEY and not sections:
            continue
        if part in tagged:
            here = tagged[part]
            continue
        if _is_of_several(here):
            continue
        if len(sections) > 1:
            here = next((s for s in sections if part in _tags(s)), None)
            continue
        path.append(part)
        here = _child(here, sections, part)
    return tuple(path), here


def _is_of_several(annotation: Any) -> bool:
    """Returns whether a value may be of several types without parts, such as a number or a word."""
    kinds = {kind for kind, _ in _members(annotation)} - {NoneType}
    return len(kinds) > 1 and not any(
        _is_section(kind) or get_origin(kind) in (dict, list, tuple) for kind in kinds
    )


def _child(here: Any, sections: list[type[BaseModel]], part: Any) -> Any:
    if sections:
        info = sections[0].model_fields.get(part)
        return _annotated(info) if info else None
    items = _items(here)
    return items[-1] if items else None


def _items(annotation: Any) -> tuple[Any, ...]:
    """Returns the types inside a list, or of a dict's keys and values."""
    kinds = [kind for kind, _ in _members(annotation)]
    holders = [kind for kind in kinds if get_origin(kind) in (dict, list, tuple)]
    return tuple(kind for kind in get_args(holders[0]) if kind is not ...) if holders else ()


def _is_of_key(schema: type[BaseModel], loc: KeyPath) -> bool:
    """Returns whether the error is about a key itself, not its value."""
    return loc[-1:] == (_KEY,) and len(_items(_locate(schema, loc[:-2])[1])) > 1


def _describe_key(schema: type[BaseModel], loc: KeyPath) -> str:
    _, owner = _locate(schema, loc[:-2])
    return describe(_items(owner)[0])


def _annotated(info: FieldInfo) -> Any:
    return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation


def _members(annotation: Any, outer: tuple[Any, ...] = ()) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yields the plain types of a union or an annotation, each with its bounds."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        yield from _members(inner, (*outer, *metadata))
    elif origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member, outer)
    elif annotation is not None:
        yield annotation, _merged(outer)


def _tagged(annotation: Any) -> dict[str, Any]:
    """Returns the members of a union with a callable discriminator, by their tags."""
    while get_origin(annotation) is Annotated:
        annotation, *_ = get_args(annotation)
    if get_origin(annotation) not in (Union, UnionType):
        return {}
    return {
        tag.tag: member
        for member in get_args(annotation)
        if get_origin(member) is Annotated
        for tag in get_args(member)[1:]
        if isinstance(tag, Tag)
    }


def _merged(metadata: tuple[Any, ...]) -> dict[str, Any]:
    names = ("ge", "gt", "le", "lt", "pattern", "min_length")
    lists = [item.metadata if isinstance(item, FieldInfo) else [item] for item in metadata]
    flat = [bound for bounds in lists for bound in bounds]
    return {n: getattr(b, n) for b in flat for n in names if getattr(b, n, None) is not None}


def _sections(annotation: Any) -> list[type[BaseModel]]:
    return [kind for kind, _ in _members(annotation) if _is_section(kind)]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _choices(annotation: Any) -> list[str]:
    return [
        found(choice).strip("'")
        for kind, _ in _members(annotation)
        if get_origin(kind) is Literal
        for choice in get_args(kind)
    ]


def _tag_key(error: Any) -> str:
    return error["ctx"]["discriminator"].strip("'")


def _tags(annotation: Any) -> list[str]:
    """Returns the names that distinguish the sections of a union (their `kind`)."""
    fields = [section.model_fields.get("kind") for section in _sections(annotation)]
    return [tag for info in fields if info for tag in _choices(info.annotation)]


def _unknown(schema: type[BaseModel], path: KeyPath, loc: KeyPath) -> str:
    """Returns the message for an unknown key: the section's own message, else a suggestion."""
    _, owner = _locate(schema, loc[:-1])
    explained = [getattr(section, "not_here", {}).get(path[-1]) for section in _sections(owner)]
    known = next(filter(None, explained), "")
    return known or ("unknown key." + _meant(schema, path, loc)).removesuffix(".")


def _meant(schema: type[BaseModel], path: KeyPath, loc: KeyPath) -> str:
    """Suggests the key of that name in another section, else the nearest one of this section."""
    _, owner = _locate(schema, loc[:-1])
    word = str(path[-1])
    siblings = [name for section in _sections(owner) for name in section.model_fields]
    here = ".".join(map(str, path))
    same = (key for key in _all_keys(schema) if key.rpartition(".")[2] == word and key != here)
    elsewhere = next((f" Did you mean '{key}'?" for key in same), "")
    return suggest(word, siblings, VERY_NEAR) or elsewhere or suggest(word, siblings)


def _all_keys(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, info in schema.model_fields.items():
        yield prefix + name
        for section in _sections(info.annotation):
            yield from _all_keys(section, f"{prefix}{name}.")
