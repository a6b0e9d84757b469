"""Converts YAML 1.2 text to plain values with the line of every key, and back.

ruamel.yaml parses the structure. Plain scalars follow the core schema of YAML 1.2.2 exactly
(`3e-4` is a number, `on` and `1_000` are text); ruamel.yaml follows it only approximately.

References:
    Core schema: https://yaml.org/spec/1.2.2/, section 10.3
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

KeyPath = tuple[Any, ...]

_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]{1,64}|0x[0-9a-fA-F]{1,64}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./*+-]*")

# Aliases of aliases can expand to billions of values: no job needs more than this.
_MOST_VALUES = 100_000
_CORE_TAG = "tag:yaml.org,2002:"


class NotYamlError(ValueError):
    """Raised for text that is not one YAML document; `line` counts from 1, None when unknown."""

    def __init__(self, line: int | None, message: str):
        super().__init__(message)
        self.line = line


@dataclass
class Tree:
    """A document: its value, the line of each key, and the problems of single keys."""

    value: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[tuple[KeyPath, int, str]] = field(default_factory=list)


def parse(text: str) -> Tree:
    """Parses one document; the value of an empty one is None. Raises NotYamlError."""
    try:
        return _Builder().document(_compose(text))
    except RecursionError:
        raise NotYamlError(None, "nested too deeply") from None


def _compose(text: str) -> Node | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return YAML(typ="safe", pure=True).compose(text)
    except YAMLError as error:
        raise NotYamlError(_line_of_error(error), _reason(error)) from None
    # Text on which ruamel.yaml itself fails (a bad escape or directive) is not YAML either.
    except (ValueError, TypeError, AttributeError, IndexError, KeyError, AssertionError) as error:
        raise NotYamlError(None, f"not YAML: {error}") from None


def _line_of_error(error: YAMLError) -> int | None:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return mark.line + 1 if mark is not None else None


def _reason(error: YAMLError) -> str:
    reason = getattr(error, "problem", None) or getattr(error, "reason", None)
    reason = reason or str(error).strip().partition("\n")[0]
    hint = ". Indent with spaces, not tabs" if "'\\t'" in reason else ""
    return f"not YAML: {reason}{hint}"


class _Builder:
    """Converts nodes to values, and records lines and problems."""

    def __init__(self):
        self.tree = Tree()
        self._open: set[int] = set()
        self._count = 0

    def document(self, node: Node | None) -> Tree:
        self.tree.value = None if node is None else self._value(node, ())
        return self.tree

    def _value(self, node: Node, path: KeyPath) -> Any:
        self._check(node, path)
        if isinstance(node, ScalarNode):
            return resolve(node.value) if _is_plain(node) else node.value
        self._open.add(id(node))
        build = self._mapping if isinstance(node, MappingNode) else self._list
        value = build(node, path)
        self._open.discard(id(node))
        return value

    def _check(self, node: Node, path: KeyPath) -> None:
        self._count += 1
        if id(node) in self._open:
            raise NotYamlError(_line(node), "an alias (*name) that contains itself")
        if self._count > _MOST_VALUES:
            raise NotYamlError(None, f"more than {_MOST_VALUES} values after aliases are expanded")
        if node.tag and not str(node.tag).startswith(_CORE_TAG):
            problem = f"the tag {node.tag} is not supported"
            self.tree.problems.append((path, _line(node), problem))

    def _list(self, node: Node, path: KeyPath) -> list[Any]:
        for i, item in enumerate(node.value):
            self.tree.lines[*path, i] = _line(item)
        return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]

    def _mapping(self, node: Node, path: KeyPath) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        first_lines: dict[Any, int] = {}
        for key_node, value_node in node.value:
            line = _line(key_node)
            key = self._value(key_node, path)
            if isinstance(key, list | dict):
                self.tree.problems.append((path, line, "a key must be text or a number"))
            elif key in first_lines:
                problem = f"duplicate key, first set on line {first_lines[key]}"
                self.tree.problems.append(((*path, key), line, problem))
            else:
                first_lines[key] = self.tree.lines[*path, key] = line
                mapping[key] = self._value(value_node, (*path, key))
        return mapping


def _line(node: Node) -> int:
    return node.start_mark.line + 1


def _is_plain(node: ScalarNode) -> bool:
    return node.style in (None, "")


def resolve(word: str) -> bool | int | float | str | None:
    """Returns the value of an unquoted scalar in YAML 1.2's core schema."""
    if word in _WORDS:
        return _WORDS[word]
    try:
        if _INT.fullmatch(word):
            return int(word)
        if _OCTAL_OR_HEX.fullmatch(word):
            return int(word, 0)
    except ValueError:  # Python refuses to read more than 4300 digits
        return word
    if _FLOAT.fullmatch(word):
        return float(word)
    if _NOT_FINITE.fullmatch(word):
        return float(word.replace(".", "").lower())
    return word


def dump(value: Any) -> str:
    """Returns YAML text that `parse` reads back equal: mappings, sequences and finite scalars."""
    if not _is_nested(value):
        return dump_inline(value) + "\n"
    return "\n".join(_block(value)) + "\n"


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _block(mapping: Mapping[Any, Any]) -> list[str]:
    lines: list[str] = []
    for key, value in mapping.items():
        if _is_nested(value):
            lines += [f"{dump_inline(key)}:", *("  " + line for line in _block(value))]
        else:
            lines.append(f"{dump_inline(key)}: {dump_inline(value)}")
    return lines


def dump_inline(value: Any) -> str:
    """Returns YAML text on one line that `parse` reads back equal."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{dump_inline(k)}: {dump_inline(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, Sequence):
        return "[" + ", ".join(dump_inline(item) for item in value) + "]"
    return repr(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and isinstance(resolve(text), str):
        return text
    return '"' + "".join(_escape(character) for character in text) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable():
        return character
    return f"\\U{ord(character):08x}"
