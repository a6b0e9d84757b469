"""The questions of `eval.multiple_choice` as likelihood requests, one for each choice."""

from pathlib import Path

from trainer.contract.config.eval import MultipleChoice
from trainer.data import readers
from trainer.data.documents import BadRecords
from trainer.data.readers import BadRecordError, Record
from trainer.data.requests import Item, Request, Task, records

KEY = "eval.multiple_choice.path"
METRICS = ("acc", "acc_norm")
BETWEEN = " "
"""Separates question and choice, like `target_delimiter` of lm-evaluation-harness."""


def read(settings: MultipleChoice, bad: BadRecords) -> Task:
    """Reads a file of questions. Raises DataError."""
    items = list[Item]()
    for place, record in records(settings.path, Path(settings.path), KEY, bad):
        with bad.left_out(place):
            items.append(_item(place, record, settings))
    return Task(KEY, settings.path, "", METRICS, items)


def _item(place: str, record: Record, settings: MultipleChoice) -> Item:
    """Returns the question in a record. Raises BadRecordError."""
    choices, answer = (
        readers.value(record, key) for key in (settings.choices_field, settings.answer_field)
    )
    if not isinstance(choices, list) or len(choices) < 2:
        raise BadRecordError(f"{settings.choices_field!r} must be a list of at least two items")
    texts = [
        readers.text({settings.choices_field: choice}, settings.choices_field) for choice in choices
    ]
    if "" in texts:
        raise BadRecordError(f"{settings.choices_field!r} contains an empty choice")
    if type(answer) is not int or not 0 <= answer < len(texts):
        raise BadRecordError(
            f"{settings.answer_field!r} must be the index of a choice, 0 to {len(texts) - 1}; "
            f"found {answer!r}"
        )
    question = readers.text(record, settings.question_field)
    requests = [Request(question, BETWEEN + text) for text in texts]
    return Item(place, requests, texts, [answer])
