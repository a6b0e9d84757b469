"""Reads a YAML file into a validated schema, or reports all of its problems together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from trainer.contract.config import yaml
from trainer.contract.config.errors import MISSING, explain, found, suggest
from trainer.contract.config.yaml import KeyPath
from trainer.contract.errors import UsageError

T = TypeVar("T", bound=BaseModel)
T_co = TypeVar("T_co", bound=BaseModel, covariant=True)

_LARGEST_BYTES = 1 << 20
_LONGEST_OVERRIDE = 100
_OVERRIDE_RANK, _MISSING_RANK = _LARGEST_BYTES + 1, _LARGEST_BYTES + 2


class ConfigError(UsageError):
    """Raised for an invalid file, with one printable line per problem."""

    def __init__(self, problems: Sequence[str]):
        self.problems = [_printable(problem) for problem in problems]
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Loaded(Generic[T_co]):
    """A validated value, and the location of each of its keys."""

    value: T_co
    source: str
    """The file, as the user named it."""
    places: dict[KeyPath, str] = field(repr=False)

    def where(self, key: str) -> str:
        """Returns the location of a dotted key: "job.yaml:7", or "override data.seq_len=8".

        A key that is written nowhere has the location of its nearest section that is written.
        """
        path = _path(key)
        known = (self.places.get(path[:n]) for n in range(len(path), 0, -1))
        return next(filter(None, known), self.source)


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
        raise ConfigError(draft.lines())
    return Loaded(value, draft.source, draft.places)


def dump(model: BaseModel) -> str:
    """Returns YAML text with every default filled in; `load` reads back an equal value."""
    return yaml.dump(model.model_dump(mode="python"))


def _parse(path: Path) -> yaml.Tree:
    text = _read(path)
    try:
        tree = yaml.parse(text)
    except yaml.NotYamlError as error:
        line = f":{error.line}" if error.line else ""
        raise ConfigError([f"{path}{line}: {error}"]) from None
    if tree.value is None and not tree.problems:
        raise ConfigError([f"{path}: the file is empty"])
    if not isinstance(tree.value, dict):
        what = found(tree.value)
        raise ConfigError([f"{path}: expected keys and values (key: value), found {what}"])
    return tree


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        near = suggest(path.name, (p.name for p in _siblings(path)))
        raise ConfigError([f"{path}: no such file.{near}".removesuffix(".")]) from None
    except IsADirectoryError:
        raise ConfigError([f"{path}: a folder, not a file"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    if len(data) > _LARGEST_BYTES:
        raise ConfigError(
            [f"{path}: larger than {_LARGEST_BYTES} bytes, the limit of a configuration file"]
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{path}:{line}: not text (UTF-8): byte {error.start}"]) from None


def _siblings(path: Path) -> list[Path]:
    try:
        return [p for p in path.parent.iterdir() if p.suffix in (".yaml", ".yml")]
    except (OSError, ValueError):
        return []


@dataclass(frozen=True)
class _Problem:
    place: str
    rank: int
    """Sort key of the messages: lines of the file, then overrides, then missing keys."""
    text: str


class _Draft:
    """A file's values while overrides and validation are applied."""

    def __init__(self, source: str, tree: yaml.Tree):
        self.source = source
        self.value: dict[Any, Any] = tree.value
        self.places = {path: f"{source}:{line}" for path, line in tree.lines.items()}
        self.problems: list[_Problem] = []
        self._lines = dict(tree.lines)
        for path, line, message in tree.problems:
            text = f"{_dotted(path)}: {message}" if path else message
            self.problems.append(_Problem(f"{source}:{line}", line, text))

    def lines(self) -> list[str]:
        ordered = sorted(self.problems, key=lambda problem: problem.rank)
        return list(dict.fromkeys(f"{problem.place}: {problem.text}" for problem in ordered))

    def override(self, override: str) -> None:
        """Applies one `key.path=value` and creates missing sections along the path."""
        place = f"override {_shortened(override)}"
        key, equals, text = override.partition("=")
        path = _path(key.strip())
        try:
            if not equals or "" in path:
                raise ValueError("expected key=value, such as optimizer.learning_rate=1e-3")
            tree = yaml.parse(text)
            self._set(place, path, tree)
        except ValueError as error:
            self._add(place, str(error))
        else:
            for _, _, message in tree.problems:
                self._add(place, message)

    def _set(self, place: str, path: KeyPath, tree: yaml.Tree) -> None:
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

    def _move(self, path: KeyPath, place: str) -> None:
        """Records `place` as the location of `path` and discards the locations below it."""
        for known in [known for known in self.places if known[: len(path)] == path]:
            del self.places[known]
            self._lines.pop(known, None)
        self.places[path] = place

    def validate(self, schema: type[T]) -> T | None:
        try:
            return schema.model_validate(self.value)
        except ValidationError as error:
            self._explain(schema, error.errors(include_url=False))
        return None

    def _explain(self, schema: type[BaseModel], errors: list[Any]) -> None:
        explained = [problem for error in errors for problem in explain(schema, error)]
        # A value that a validator derived from a wrong one is wrong too; the user did not write it.
        written = [
            (p, m) for p, m in explained if p in self.places or m.startswith(MISSING) or not p
        ]
        for path, message in written or explained:
            self._complain(path, message)

    def _complain(self, path: KeyPath, message: str) -> None:
        is_missing = message.startswith(MISSING)
        known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in self.places), ())
        place = self.source if is_missing else self.places.get(known, self.source)
        names_the_key = place.startswith(f"override {_dotted(path)}=")
        text = message if names_the_key or not path else f"{_dotted(path)}: {message}"
        rank = _MISSING_RANK if is_missing else self._lines.get(known, _OVERRIDE_RANK)
        self.problems.append(_Problem(place, rank, text))

    def _add(self, place: str, text: str) -> None:
        self.problems.append(_Problem(place, _OVERRIDE_RANK, text))


def _path(key: str) -> KeyPath:
    return tuple(int(p) if p.isascii() and p.isdigit() else p for p in key.split("."))


def _dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)


def _printable(text: str) -> str:
    """Escapes control characters: a file's keys may hold any, and the text goes to a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_OVERRIDE else text[:_LONGEST_OVERRIDE] + "..."
