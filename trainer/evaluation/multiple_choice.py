"""Questions of multiple choice as examples: one for each choice, whose tokens alone count."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from trainer.contract.config.job import Job, MultipleChoice
from trainer.contract.storage.corpus import DataError
from trainer.data import readers
from trainer.data.documents import BadRecords
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.packing import Batch, held_out_example
from trainer.data.readers import BadRecordError, Record
from trainer.data.tokenizer import Tokenizer
from trainer.distributed import consensus, initialize
from trainer.distributed import mesh as meshes
from trainer.model import Params
from trainer.step.loss import losses_by_row
from trainer.step.train_step import TrainProgram
from trainer.telemetry.metrics import MultipleChoiceResult

BETWEEN = " "
"""Question and choice, as lm-evaluation-harness has it (`target_delimiter`)."""


class Question(NamedTuple):
    text: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class Questions:
    every: Sequence[Question]
    examples: Sequence[Batch]
    """Of the first question's choices, then the second's, numbered in this order."""
    bad: BadRecords
    sha256: str
    """Of the file."""


def load(job: Job, encoder: Tokenizer) -> Questions | None:
    """None where the job asks for none. Raises DataError."""
    settings = job.evaluate and job.evaluate.multiple_choice
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
        raise DataError(f"evaluate.multiple_choice.path: {settings.path} has no question")
    numbered = [one._replace(examples=np.int32(number)) for number, one in enumerate(examples)]
    return Questions(every, numbered, bad, hashlib.sha256(content).hexdigest())


def _content(settings: MultipleChoice) -> bytes:
    try:
        return Path(settings.path).expanduser().read_bytes()
    except OSError as error:
        raise DataError(
            f"evaluate.multiple_choice.path: {settings.path} cannot be read: {error.strerror}"
        ) from None


def _question(record: Record, settings: MultipleChoice) -> Question:
    """Raises BadRecordError."""
    choices, answer = (readers.value(record, key) for key in (settings.choices, settings.answer))
    if not isinstance(choices, list) or len(choices) < 2:
        raise BadRecordError(f"{settings.choices!r} is no list of two choices or more")
    texts = [readers.text({settings.choices: choice}, settings.choices) for choice in choices]
    if "" in texts:
        raise BadRecordError(f"a choice of {settings.choices!r} is empty")
    if type(answer) is not int or not 0 <= answer < len(texts):
        raise BadRecordError(
            f"{settings.answer!r} is no number of a choice, 0 to {len(texts) - 1}: {answer!r}"
        )
    return Question(readers.text(record, settings.question), tuple(texts), answer)


def _examples(question: Question, seq_len: int, encoder: Tokenizer) -> list[Batch]:
    """Of a question that is too long its end. Raises BadRecordError where a choice is."""
    before = len(question.text.encode())
    texts = [f"{question.text}{BETWEEN}{choice}".encode() for choice in question.choices]
    rows = list(encoder.encode_answers(texts, [[(before, len(text))] for text in texts]))
    for row, choice in zip(rows, question.choices, strict=True):
        if np.sum(row[1:] >= 0) > seq_len:
            raise BadRecordError(f"{choice[:20]!r} is longer than data.seq_len, {seq_len} tokens")
    # One text: attention stops at no separator, wherever the question may have one.
    return [held_out_example(row[-seq_len - 1 :], 0, seq_len, None) for row in rows]


class MultipleChoiceEvaluator:
    """Compiled once, at the first evaluation; every process must call all of it.

    Raises DataError where the hosts have other questions.
    """

    def __init__(self, trainable: TrainProgram, questions: Questions) -> None:
        self._network, self._questions = trainable.network, questions
        self._deadlines = trainable.job.deadlines
        whole = meshes.replicated(trainable.mesh)
        places = (trainable.shardings.params, batch_shardings(trainable.mesh))
        self._score = jax.jit(self._scores, in_shardings=places, out_shardings=(whole, whole))
        self._compiled: Callable[[Params, Batch], tuple[jax.Array, jax.Array]] | None = None
        _check_all_alike(questions)

    def evaluate(self, params: Params, feed: BatchLoader) -> MultipleChoiceResult:
        scores = np.zeros(len(self._questions.examples), np.float32)
        for batch in feed.given(self._questions.examples):
            numbers, found = jax.device_get(self._ready(params, batch)(params, batch))
            is_real = numbers >= 0
            scores[numbers[is_real]] = found[is_real]
        return judged(self._questions.every, scores)

    def _ready(
        self, params: Params, batch: Batch
    ) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
        if self._compiled is None:
            self._compiled = self._score.lower(params, batch).compile()
            initialize.wait_for_compilers("first choice", self._deadlines)
        return self._compiled

    def _scores(self, params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """(M, B) both: numbers of the examples, and their log-likelihoods in nats."""

        def score(_: None, micro: Batch) -> tuple[None, tuple[jax.Array, jax.Array]]:
            losses_B = losses_by_row(self._network.bind(params), micro)
            return None, (micro.examples, -losses_B)

        if batch.tokens.shape[0] == 1:
            found = score(None, jax.tree.map(lambda x: x[0], batch))[1]
            return found[0][None], found[1][None]
        return jax.lax.scan(score, None, batch)[1]


def judged(questions: Sequence[Question], scores: np.ndarray) -> MultipleChoiceResult:
    """`scores` are of the first question's choices, then of the second's; the first of equals."""
    right = np.zeros(2, int)
    first = 0
    for question in questions:
        of_it = scores[first : first + len(question.choices)]
        lengths = [len(choice) for choice in question.choices]
        chosen = np.array([np.argmax(of_it), np.argmax(of_it / lengths)])
        right, first = right + (chosen == question.answer), first + len(question.choices)
    accuracy, normalized = (right / len(questions)).tolist()
    return MultipleChoiceResult(accuracy, normalized)


def _check_all_alike(questions: Questions) -> None:
    own = questions.sha256
    first = consensus.tell("questions", own if jax.process_index() == 0 else None)
    error = None
    if own != first:
        error = DataError("evaluate.multiple_choice.path: not the file that host-0000 has")
    consensus.agree("questions alike", error, [DataError])
