"""Likelihood requests: texts whose likelihood after another text is asked, and their tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainer.contract.storage.corpus import DataError
from trainer.data import readers
from trainer.data.documents import BadRecords
from trainer.data.readers import BadRecordError
from trainer.data.tokenizer import Tokenizer


class Request(NamedTuple):
    """A text, and the one before it."""

    context: str
    continuation: str


class Item(NamedTuple):
    """A record of a task, as requests."""

    place: str
    """Its file and line."""
    requests: Sequence[Request]
    choices: Sequence[str] = ()
    """The choices, one for each request; () where the likelihood of one text is asked."""
    answers: Sequence[int] = ()
    """Indices of the right choices."""


@dataclass(frozen=True)
class Task:
    """Items, and what is reported of them."""

    key: str
    """Key of the job file that names its file."""
    source: str
    """Its file."""
    name: str
    """Its name in reports; "" for the questions of `eval.multiple_choice`."""
    metrics: Sequence[str]
    items: Sequence[Item]


def records(
    name: str, path: Path, key: str, bad: BadRecords
) -> Iterator[tuple[str, readers.Record]]:
    """Yields file:line and content of each record of a JSON Lines file.

    `name` is the file as the user named it in `key`. Raises DataError when it cannot be read.
    """
    try:
        content = path.expanduser().read_bytes()
    except OSError as error:
        raise DataError(f"{key}: {name} cannot be read: {error.strerror}") from None
    for line, found in readers.lines(BytesIO(content), lambda record: record):
        place = f"{name}:{line}"
        if isinstance(found, BadRecordError):
            bad.add(f"{place}: {found}")
        else:
            yield place, found


def encoded(requests: Sequence[Request], encoder: Tokenizer) -> Iterator[np.ndarray]:
    """Yields the tokens of each request as int32, with ~token for those of the context.

    They are those of lm-evaluation-harness. White space at the end of a context belongs to the
    continuation. Both are encoded as one text, whose first tokens, as many as the context alone
    has, are the context. The separator is the context of a text without one.

    References:
        `TemplateLM` in https://github.com/EleutherAI/lm-evaluation-harness, lm_eval/api/model.py
    """
    texts = dict.fromkeys(
        text for one in requests if one.context for text in (_context(one), "".join(one))
    )
    prompts = encoder.encode_with_template([text.encode() for text in texts])
    tokens = dict(zip(texts, prompts, strict=True))
    for one in requests:
        if one.context:
            yield _marked(tokens["".join(one)], len(tokens[_context(one)]))
            continue
        alone = encoder.encode(one.continuation.encode())
        opens_itself = len(alone) > 1 and alone[1] == encoder.eos_id
        yield _marked(alone[1:] if opens_itself else alone, 1)


def _context(request: Request) -> str:
    return request.context.rstrip()


def _marked(tokens: np.ndarray, context: int) -> np.ndarray:
    """Returns tokens with ~token for the first `context` ones."""
    tokens = tokens.astype(np.int32)
    return np.where(np.arange(len(tokens)) < context, ~tokens, tokens)
