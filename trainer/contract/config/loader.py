"""Reads a YAML file into a validated schema, or reports all of its problems together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from trainer.contract.config import yaml
from trainer.contract.config.errors import Explanation, explain, found, suggest
from trainer.contract.config.yaml import KeyPath
from trainer.contract.errors import Place, Problem, UsageError

T = TypeVar("T", bound=BaseModel)
T_co = TypeVar("T_co", bound=BaseModel, covariant=True)

_LARGEST_BYTES = 1 << 20
_LONGEST_OVERRIDE = 100
_OVERRIDE_RANK, _MISSING_RANK = _LARGEST_BYTES + 1, _LARGEST_BYTES + 2


class ConfigError(UsageError):
    """Raised for an invalid file, with one printable line per problem."""

    def __init__(self, problems: Sequence[Problem | str]):
        self.problems = [_printable(problem) for problem in problems]
        self.lines = [str(problem) for problem in self.problems]
        super().__init__("\n".join(self.lines))


@dataclass(frozen=True)
class Loaded(Generic[T_co]):
    """A validated value, and the location of each of its keys."""

    value: T_co
    source: str
    """The file, as the user named it."""
    places: dict[KeyPath, Place] = field(repr=False)

    def where(self, key: str) -> Place:
        """Returns the place of a dotted key.

        A key that is written nowhere has the place of its nearest section that is written.
        """
        path = _path(key)
        known = (self.places.get(path[:n]) for n in range(len(path), 0, -1))
        return next(filter(None, known), Place(file=self.source))

    def problem(self, key: str, message: str) -> Problem:
        """Returns a problem of a dotted key."""
        return Problem(**vars(self.where(key)), key=key, message=message)


def load(path: Path, schema: type[T], overrides: Sequence[str] = ()) -> Loaded[T]:
    """Reads `path` and applies `key.path=value` overrides to it.

    Raises:
      ConfigError: with every problem, each naming its line (or override) and key.
    """
    return load_chosen(path, lambda content: schema, overrides)


def load_chosen(
    path: Path, choose: Callable[[Mapping[Any, Any]], type[T]], overrides: Sequence[str] = ()
) -> Loaded[T]:
    """Loads a file by the schema that `choose` returns for its content, overrides included."""
    draft = _Draft(str(path), _parse(path))
    for override in overrides:
        draft.override(override)
    value = draft.validate(choose(draft.value))
    if draft.problems or value is None:
        raise ConfigError(draft.in_order())
    return Loaded(value, draft.source, draft.places)


def dump(model: BaseModel) -> str:
    """Returns YAML text with every default filled in; `load` reads back an equal value."""
    return yaml.dump(model.model_dump(mode="python"))


def _parse(path: Path) -> yaml.Tree:
    text = _read(path)
    try:
        tree = yaml.parse(text)
    except yaml.NotYamlError as error:
        problem = Problem(file=str(path), line=error.line or None, message=str(error))
        raise ConfigError([problem]) from None
    if tree.value is None and not tree.problems:
        raise ConfigError([Problem(file=str(path), message="the file is empty")])
    if not isinstance(tree.value, dict):
        what, wanted = found(tree.value), "keys and values (key: value)"
        message = f"expected {wanted}, found {what}"
        raise ConfigError([Problem(file=str(path), message=message, found=what, expected=wanted)])
    return tree


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        near = suggest(path.name, (p.name for p in _siblings(path)))
        raise _unreadable(path, f"no such file.{near}".removesuffix(".")) from None
    except IsADirectoryError:
        raise _unreadable(path, "a folder, not a file") from None
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from None
    if len(data) > _LARGEST_BYTES:
        message = f"larger than {_LARGEST_BYTES} bytes, the limit of a configuration file"
        raise _unreadable(path, message)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _unreadable(path, f"not text (UTF-8): byte {error.start}", line) from None


def _unreadable(path: Path, message: str, line: int | None = None) -> ConfigError:
    return ConfigError([Problem(file=str(path), line=line, message=message)])


def _siblings(path: Path) -> list[Path]:
    try:
        return [p for p in path.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except (OSError, ValueError):
        return []


class _Draft:
    """A file's values while overrides and validation are applied."""

    def __init__(self, source: str, tree: yaml.Tree):
        self.source = source
        self.value: dict[Any, Any] = tree.value
        self.places = {p: Place(file=source, line=line) for p, line in tree.lines.items()}
        self.problems = [
            Problem(file=source, line=line, key=_dotted(path) or None, message=message)
            for path, line, message in tree.problems
        ]

    def in_order(self) -> list[Problem]:
        """Returns the problems: those of lines of the file, of overrides, and of missing keys."""
        return list(dict.fromkeys(sorted(self.problems, key=_rank)))

    def override(self, override: str) -> None:
        """Applies one `key.path=value` and creates missing sections along the path."""
        place = Place(override=_shortened(override))
        key, equals, text = override.partition("=")
        path = _path(key.strip())
        try:
            if not equals or "" in path:
                raise ValueError("expected key=value, such as optimizer.learning_rate=1e-3")
            tree = yaml.parse(text)
            self._set(place, path, tree)
            messages = [message for _, _, message in tree.problems]
        except ValueError as error:
            messages = [str(error)]
        named = key if equals else None
        self.problems += [Problem(**vars(place), key=named, message=text) for text in messages]

    def _set(self, place: Place, path: KeyPath, tree: yaml.Tree) -> None:
        section = self.value
        for depth, part in enumerate(path[:-1], 1):
            if section.get(part) is None:
                section[part] = {}
                self._move(path[:depth], place)
            section = section[part]
            if not isinstance(section, dict):
                raise ValueError(f"{_dotted(path[:depth])} is {found(section)}, not a section")
        section[path[-1]] = tree.value
        self._move(path, place)
        self.places |= {(*path, *below): place for below in tree.lines}

    def _move(self, path: KeyPath, place: Place) -> None:
        """Records `place` as the location of `path` and discards the locations below it."""
        for known in [known for known in self.places if known[: len(path)] == path]:
            del self.places[known]
        self.places[path] = place

    def validate(self, schema: type[T]) -> T | None:
        try:
            return schema.model_validate(self.value)
        except ValidationError as error:
            self._explain(schema, error.errors(include_url=False))
        return None

    def _explain(self, schema: type[BaseModel], errors: list[Any]) -> None:
        # A value that may be of several types has an error, with the same text, for each of them.
        explained = list(
            dict.fromkeys(problem for error in errors for problem in explain(schema, error))
        )
        # A value that a validator derived from a wrong one is wrong too; the user did not write it.
        written = [
            one for one in explained if one.path in self.places or one.is_missing or not one.path
        ]
        self.problems += map(self._problem, written or explained)

    def _problem(self, one: Explanation) -> Problem:
        path, place = one.path, Place(file=self.source)
        if not one.is_missing:
            known = (self.places.get(path[:n]) for n in range(len(path), 0, -1))
            place = next(filter(None, known), place)
        return Problem(
            **vars(place), key=_dotted(path) or None, message=one.message, found=one.found,
            expected=one.expected,
        )  # fmt: skip


def _rank(problem: Problem) -> int:
    """Returns the position of a problem's message: lines, then overrides, then missing keys."""
    if problem.override is not None:
        return _OVERRIDE_RANK
    return _MISSING_RANK if problem.line is None else problem.line


def _path(key: str) -> KeyPath:
    return tuple(int(p) if p.isascii() and p.isdigit() else p for p in key.split("."))


def _dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def _printable(problem: Problem | str) -> Problem:
    """Escapes control characters: a file's keys may hold any, and the text goes to a terminal."""
    if isinstance(problem, str):
        return Problem(message=_escaped(problem))
    texts = {name: _escaped(text) for name, text in vars(problem).items() if isinstance(text, str)}
    return replace(problem, **texts)


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_OVERRIDE else text[:_LONGEST_OVERRIDE] + "..."
