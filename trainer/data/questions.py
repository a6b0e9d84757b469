"""Multiple-choice questions as examples: one per choice, with weight on its tokens only."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainer.contract.config.job import Job, MultipleChoice
from trainer.contract.storage.corpus import DataError
from trainer.data import readers
from trainer.data.documents import BadRecords
from trainer.data.packing import Batch, held_out_example
from trainer.data.readers import BadRecordError, Record
from trainer.data.tokenizer import Tokenizer

BETWEEN = " "
"""Separates question and choice, like `target_delimiter` of lm-evaluation-harness."""


class Question(NamedTuple):
    """A question with its choices."""

    text: str
    choices: tuple[str, ...]
    answer: int
    """Index of the correct choice."""


@dataclass(frozen=True)
class Questions:
    """A file of questions, with one example per choice."""

    every: Sequence[Question]
    examples: Sequence[Batch]
    """Examples of the first question's choices, then the second's, numbered in this order."""
    bad: BadRecords
    sha256: str
    """Hash of the file."""


def load(job: Job, encoder: Tokenizer) -> Questions | None:
    """Loads the questions, or returns None when the job has none. Raises DataError."""
    settings = job.eval and job.eval.multiple_choice
    if not settings:
        return None
    content = _content(settings)
    bad, every, examples = BadRecords(job.data.max_bad_records), list[Question](), list[Batch]()
    for line, found in readers.lines(BytesIO(content), lambda record: _question(record, settings)):
        try:
            if isinstance(found, BadRecordError):
                raise found
            examples += _examples(found, job.data.seq_len, encoder)
            every.append(found)
        except BadRecordError as error:
            bad.add(f"{settings.path}:{line}: {error}")
    if not every:
        raise DataError(f"eval.multiple_choice.path: {settings.path} contains no question")
    numbered = [one._replace(examples=np.int32(number)) for number, one in enumerate(examples)]
    return Questions(every, numbered, bad, hashlib.sha256(content).hexdigest())


def _content(settings: MultipleChoice) -> bytes:
    try:
        return Path(settings.path).expanduser().read_bytes()
    except OSError as error:
        raise DataError(
            f"eval.multiple_choice.path: {settings.path} cannot be read: {error.strerror}"
        ) from None


def _question(record: Record, settings: MultipleChoice) -> Question:
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
    return Question(readers.text(record, settings.question_field), tuple(texts), answer)


def _examples(question: Question, seq_len: int, encoder: Tokenizer) -> list[Batch]:
    """Returns one example per choice, truncated on the left.

    Raises BadRecordError when a choice alone is longer than `seq_len`.
    """
    before = len(question.text.encode())
    texts = [f"{question.text}{BETWEEN}{choice}".encode() for choice in question.choices]
    rows = list(encoder.encode_answers(texts, [[(before, len(text))] for text in texts]))
    for row, choice in zip(rows, question.choices, strict=True):
        if np.sum(row[1:] >= 0) > seq_len:
            raise BadRecordError(
                f"the choice {choice[:20]!r} is longer than data.seq_len ({seq_len} tokens)"
            )
    # Each example is one text: attention does not stop at a separator inside the question.
    return [held_out_example(row[-seq_len - 1 :], 0, seq_len, None) for row in rows]
