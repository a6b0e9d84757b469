"""The texts that a task file makes of a record, as lm-evaluation-harness makes them.

References:
    `ConfigurableTask` in lm_eval/api/task.py of
    https://github.com/EleutherAI/lm-evaluation-harness
"""

import ast
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from trainer.contract.config.task_file import TaskFile, environment
from trainer.data import readers
from trainer.data.readers import BadRecordError, Record
from trainer.data.requests import Item, Request

if TYPE_CHECKING:
    from jinja2 import Template


def item(task: TaskFile, place: str, record: Record, examples: Sequence[Record]) -> Item:
    """Returns a record with examples before it. Raises BadRecordError."""
    before = _description(task, record) + "".join(_example(task, one) for one in examples)
    text, target = _text(task, record), _target(task, record)
    if task.output_type == "loglikelihood":
        asked = Request(before + _plain("doc_to_text", text), _plain("doc_to_target", target))
        return Item(place, [asked])
    choices = _choices(task, record)
    if isinstance(text, int):  # each choice is a text, and all have the same target
        if not isinstance(target, str | int):
            raise BadRecordError(f"'doc_to_target' must be text, found {target!r}")
        after = f"{task.target_delimiter}{target}"
        asked, answer = [Request(before + choice, after) for choice in choices], text
    else:
        before += _plain("doc_to_text", text)
        after, answer = task.target_delimiter, target
        asked = [Request(before, after + choice) for choice in choices]
    return Item(place, asked, choices, _answers(answer, choices))


def _description(task: TaskFile, record: Record) -> str:
    if task.description in record:
        return _plain("description", record[task.description])
    return _filled("description", task.description, record)


def _example(task: TaskFile, record: Record) -> str:
    """Returns the text of a record with its answer, and without delimiters if that is empty."""
    text, target = _text(task, record), _target(task, record)
    choices = _choices(task, record) if task.doc_to_choice is not None else []
    if isinstance(text, int):
        text = choices[_index(text, choices)]
    elif choices and isinstance(target, int):
        target = choices[_index(target, choices)]
    text = _plain("doc_to_text", text)
    if target in (None, ""):
        return text
    answer = target[0] if isinstance(target, list) and target else target
    answer = _plain("doc_to_target", answer)
    return f"{text}{task.target_delimiter}{answer}{task.fewshot_delimiter}"


def _text(task: TaskFile, record: Record) -> Any:
    given = task.doc_to_text
    if isinstance(given, int):
        return given
    if _is_field(given, record):
        return record[given]
    return _number_or_text(task, _filled("doc_to_text", given, record))


def _target(task: TaskFile, record: Record) -> Any:
    given = task.doc_to_target
    if not isinstance(given, str):
        return given
    if _is_field(given, record):
        return record[given]
    text = _filled("doc_to_target", given, record)
    if text.startswith("[") and text.endswith("]"):
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError):
            return text
    return _number_or_text(task, text)


def _number_or_text(task: TaskFile, text: str) -> int | str:
    """Returns digits as a number where there are choices."""
    is_number = task.doc_to_choice is not None and text.isdigit()
    return _literal(text) if is_number else text


def _choices(task: TaskFile, record: Record) -> list[str]:
    given = task.doc_to_choice
    if isinstance(given, str):
        is_field = _is_field(given, record)
        found = record[given] if is_field else _literal(_filled("doc_to_choice", given, record))
    else:
        found = list(given.values()) if isinstance(given, dict) else given
    if not isinstance(found, list) or len(found) < 2:
        raise BadRecordError(f"'doc_to_choice' must be a list of at least two texts: {found!r:.40}")
    choices = [_plain("doc_to_choice", choice) for choice in found]
    if "" in choices:
        raise BadRecordError("'doc_to_choice' contains an empty choice")
    return choices


def _answers(found: Any, choices: Sequence[str]) -> list[int]:
    """Returns the indices of the right choices: of a number, a choice, or a list of numbers."""
    if isinstance(found, list) and found:
        return [_index(one, choices) for one in found]
    return [choices.index(found) if found in choices else _index(found, choices)]


def _index(found: Any, choices: Sequence[str]) -> int:
    if not isinstance(found, int) or not 0 <= found < len(choices):
        raise BadRecordError(
            f"the answer must be a choice or its index, 0 to {len(choices) - 1}; found {found!r}"
        )
    return int(found)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        raise BadRecordError(f"expected a list or number of Python, found {text[:40]!r}") from None


def _plain(key: str, found: Any) -> str:
    return readers.text({key: found}, key)


def _is_field(given: str, record: Record) -> bool:
    """Returns whether a text names a field. Raises BadRecordError for a name without a field."""
    if given.isidentifier():
        readers.value(record, given)
    return given in record


def _filled(key: str, template: str, record: Record) -> str:
    """Returns a template that is filled with the fields of a record. Raises BadRecordError."""
    try:
        return _compiled(template).render(record)
    except Exception as error:  # the expressions are the user's
        raise BadRecordError(f"{key!r} cannot be filled: {str(error).removesuffix('.')}") from None


@cache
def _compiled(template: str) -> "Template":
    return environment().from_string(template)
