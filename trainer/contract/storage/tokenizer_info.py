"""The vocabulary of a job's tokenizer: its size and its document separator. Pure Python."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainer.contract.config.data import BYTES, Data, TrainTokenizer
from trainer.contract.config.errors import suggest
from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel
from trainer.contract.storage.retries import retried

ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""End-of-text tokens of the GPT-2, Llama 3, Llama 2, Gemma and BERT tokenizer families."""


@dataclass(frozen=True)
class Vocabulary:
    size: int
    """One more than the largest id."""
    eos_id: int
    """Id of the token before every document, which also ends the previous one."""
    eos_token: str
    sha256: str
    """Hash of the tokenizer's file, or of its training settings; "" without either."""


class VocabularyError(ValueError):
    """Raised for an unusable tokenizer; `key` is the cause in the job's `data` section."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


OF_BYTES = Vocabulary(size=257, eos_id=256, eos_token="<|document|>", sha256="")
TRAINING = "1"
"""Version of the training; changes when the same documents would give another tokenizer."""


def vocabulary(data: Data) -> Vocabulary:
    """Returns the vocabulary. Raises VocabularyError for a bad file or an unknown separator."""
    if data.tokenizer == BYTES:
        if data.eos_token is not None:
            raise VocabularyError(
                "eos_token", "the bytes tokenizer has a fixed one. Remove this key"
            )
        return OF_BYTES
    if isinstance(data.tokenizer, TrainTokenizer):
        if data.eos_token is not None:
            raise VocabularyError(
                "eos_token", "a trained tokenizer has a fixed one. Remove this key"
            )
        if any(part.source == "tokens" for part in data.parts):
            raise VocabularyError(
                "tokenizer",
                "cannot be trained on source 'tokens'. Set it to the tokenizer that made them",
            )
        return _trained(data.tokenizer.train)
    sha256, ids = _read(Path(data.tokenizer).expanduser())
    known = [text for text in ENDS_OF_TEXT if text in ids]
    eos_token = data.eos_token or next(iter(known), None)
    if eos_token is None:
        raise VocabularyError(
            "eos_token",
            f"{data.tokenizer} has none of the usual ones ({', '.join(ENDS_OF_TEXT)}). "
            "Set this key to the token that separates documents",
        )
    if eos_token not in ids:
        hint = suggest(eos_token, known)
        raise VocabularyError("eos_token", f"{data.tokenizer} has no token '{eos_token}'.{hint}")
    return Vocabulary(1 + max(ids.values()), ids[eos_token], eos_token, sha256)


def vocab_size(job: Job) -> int:
    """Returns the model's vocabulary size before padding. Raises VocabularyError."""
    given = None if isinstance(job.model, CustomModel) else job.decoder.vocab_size
    return given or vocabulary(job.data).size


def has_ids_of(data: Data, file: Path) -> bool:
    """Returns whether the tokenizer of `data` has the tokens and ids of a tokenizer.json.

    Raises VocabularyError for a file that is none.
    """
    ids = _read(file)[1]
    if data.tokenizer == BYTES:
        # Only an export of a model of bytes has the separator.
        return ids.get(OF_BYTES.eos_token) == OF_BYTES.eos_id
    if isinstance(data.tokenizer, TrainTokenizer):
        return False
    return _read(Path(data.tokenizer).expanduser())[1] == ids


def _trained(size: int) -> Vocabulary:
    """Returns the vocabulary of a tokenizer before its training: `size` tokens, separator first."""
    sha256 = hashlib.sha256(f"trained {TRAINING} {size}".encode()).hexdigest()
    return Vocabulary(size, 0, ENDS_OF_TEXT[0], sha256)


@lru_cache(maxsize=2)
def _read(path: Path) -> tuple[str, dict[str, int]]:
    """Returns the hash of a tokenizer's file and the id of every token."""
    try:
        content = retried(str(path), path.read_bytes)
    except OSError as error:
        why = (
            f"cannot read {path}: {error.strerror}. Expected 'bytes' or the path of a "
            "tokenizer.json"
        )
        raise VocabularyError("tokenizer", why) from error
    try:
        found = json.loads(content)
        ids = _ids(found["model"]["vocab"]) | {t["content"]: t["id"] for t in found["added_tokens"]}
    except (ValueError, KeyError, TypeError) as error:
        raise VocabularyError(
            "tokenizer", f"{path} is not a Hugging Face tokenizer.json: {error!r}"
        ) from None
    return hashlib.sha256(content).hexdigest(), ids


def _ids(vocab: Any) -> dict[str, int]:
    """Returns token -> id; Unigram models list tokens with their scores."""
    if isinstance(vocab, list):
        return {text: number for number, (text, _) in enumerate(vocab)}
    return dict(vocab)
