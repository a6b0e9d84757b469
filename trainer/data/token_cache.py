"""A corpus as two streams of tokens on disk, built once by the first process that needs them.

tokens/KEY/          the streams, and the records that were left out
tokens/KEY.making/   an unfinished build, which the next process resumes
tokens/KEY.lock      the lock of the process that builds
"""

import errno
import hashlib
import json
import shutil
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from trainer.contract.config.data import Data, TrainTokenizer
from trainer.contract.config.loader import ConfigError
from trainer.contract.storage import corpus
from trainer.contract.storage.cache_dirs import cache_folder
from trainer.contract.storage.retries import retried
from trainer.contract.storage.tokenizer_info import vocabulary
from trainer.data import cache_lock, pairs, token_shards, tokenizer, train_tokenizer
from trainer.data.cache_lock import Progress
from trainer.data.documents import BadRecords
from trainer.data.pairs import Pairs
from trainer.data.token_shards import Stream
from trainer.data.tokenizer import BYTES, Tokenizer

MARKED = ("chat", "preference")
"""Sources some of whose tokens are not learned."""
FORMAT = "4"
BAD_RECORDS = "bad_records.json"
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
LEFTOVER_S = 7 * 86400
"""Age of an interrupted build at which it is removed: no process will resume it."""


@dataclass(frozen=True)
class Tokens:
    """Streams of tokens, with a separator before each document; the arrays stay on disk (mmap).

    `~token` marks a token that is read but not learned.
    """

    corpus_sha256: str
    held_in: np.ndarray | Stream
    held_out: np.ndarray | Stream
    bad: BadRecords = field(default_factory=lambda: BadRecords(0))
    """Records that are left out."""

    tokenizer: Tokenizer = BYTES
    trained: str = ""
    """The text of `tokenizer.json` if the tokenizer was trained, else ""."""
    documents: np.ndarray | None = None
    """First token, file and line of each training document (documents, 3); None when the streams
    are files of tokens."""
    pairs: Pairs | None = None
    """The examples of `source: preference`; None for other sources, which are cut into windows."""

    @property
    def parts(self) -> "tuple[Tokens, ...]":
        """This corpus alone; a `Mixture` has several parts."""
        return (self,)

    @property
    def weights(self) -> tuple[int, ...]:
        return (1,)

    @property
    def names(self) -> tuple[str, ...]:
        return ("",)

    @property
    def count(self) -> int:
        """Number of training tokens."""
        return len(self.held_in)

    def boundary(self, data: Data) -> int | None:
        """Returns the token at which attention stops, or None when it crosses documents."""
        return self.tokenizer.eos_id if data.mask_across_documents else None

    def sequences(self, seq_len: int) -> int:
        """Returns the number of training examples: pairs, or windows of `seq_len` tokens."""
        if self.pairs:
            return len(self.pairs.held_in)
        return max(0, (len(self.held_in) - 1) // seq_len)

    def inputs(self, number: int, seq_len: int) -> slice:
        """Returns the part of the training stream that is the input of an example."""
        if self.pairs:
            return slice(*self.pairs.held_in[number].tolist())
        return slice(number * seq_len, (number + 1) * seq_len)


def load(
    data: Data, progress: Progress = lambda done, total, builder: None, trained: str = ""
) -> Tokens:
    """Returns one corpus, from the cache or tokenized now.

    `trained` is the text of an already trained tokenizer's `tokenizer.json`. Raises
    corpus.DataError, StorageError, and ConfigError when the cache cannot be written.
    """
    sha256 = found = corpus.digest(data)
    if isinstance(data.tokenizer, TrainTokenizer):
        trained = trained or train_tokenizer.load([data], sha256, progress)
        sha256 = hashlib.sha256(f"{sha256}\0{trained}".encode()).hexdigest()
    encoder = tokenizer.of(data, trained)
    if data.source == "tokens":
        return Tokens(sha256, *token_shards.load(data, vocabulary(data)), tokenizer=encoder)
    key = hashlib.sha256(f"{FORMAT} {sha256} {data.validation_fraction}".encode()).hexdigest()[:32]
    folder = cache_folder() / "tokens" / key
    try:
        if not folder.is_dir():
            _make(folder, data, found, encoder, progress)
        left_out, held_in, held_out, found_in = retried(str(folder), partial(_read, folder))
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        raise ConfigError(
            [
                f"{folder.parent}: cannot write the token cache: {error.strerror}. "
                "Set XDG_CACHE_HOME to a folder that this host can write to"
            ]
        ) from error
    bad = BadRecords(data.max_bad_records, left_out)
    bad.check()
    found = None
    if data.source == "preference":
        found = pairs.find(held_in, held_out, found_in, encoder.eos_id, data, bad)
    return Tokens(sha256, held_in, held_out, bad, encoder, trained, found_in, found)


def check(tokens: Tokens, data: Data) -> None:
    """Raises corpus.DataError when the tokens do not fill one sequence or one global batch."""
    count = len(tokens.held_in)
    if tokens.pairs is None and count < data.seq_len + 1:
        raise corpus.DataError(
            f"the corpus has {count:,} tokens for training, but a sequence needs "
            f"{data.seq_len + 1:,}. Reduce data.seq_len or add text"
        )
    sequences = tokens.sequences(data.seq_len)
    if sequences < data.global_batch:
        kind = f"sequences of {data.seq_len} tokens" if tokens.pairs is None else "training pairs"
        raise corpus.DataError(
            f"the corpus has {sequences:,} {kind}, fewer than "
            f"data.global_batch ({data.global_batch}). Reduce data.global_batch or add text"
        )


def _read(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray, np.ndarray]:
    """Returns the bad records, the two streams, and the table of documents."""
    left_out = json.loads((folder / BAD_RECORDS).read_text())
    held_in, held_out, documents = (
        np.load(folder / name, mmap_mode="r")
        for name in (token_shards.HELD_IN, token_shards.HELD_OUT, token_shards.DOCUMENTS)
    )
    return left_out, held_in, held_out, documents.reshape(-1, 3)


def _make(folder: Path, data: Data, sha256: str, encoder: Tokenizer, progress: Progress) -> None:
    retried(str(folder.parent), lambda: folder.parent.mkdir(parents=True, exist_ok=True))
    with cache_lock.held(folder.with_suffix(".lock"), progress) as publish:
        if folder.is_dir():
            return
        _clean(folder.parent, folder.with_suffix(".making"))
        report = cache_lock.report_to_both(publish, progress)
        retried(str(folder), partial(_fill, folder, data, sha256, encoder, report))


def _fill(
    folder: Path, data: Data, sha256: str, encoder: Tokenizer, report: cache_lock.Report
) -> None:
    """Tokenizes the corpus with this digest. Raises DataError when the corpus has changed."""
    making = folder.with_suffix(".making")
    bad = token_shards.tokenize(making / "shards", data, encoder, report)
    if corpus.digest(data) != sha256:
        shutil.rmtree(making)
        raise corpus.DataError(
            "the corpus changed while it was being tokenized, so its tokens were discarded. "
            "Start the run again when the files are complete"
        )
    whole = making / "whole"
    whole.mkdir(exist_ok=True)
    dtype = np.int32 if data.source in MARKED else encoder.dtype
    token_shards.join(making / "shards", whole, data.validation_fraction, dtype, report)
    (whole / BAD_RECORDS).write_text(json.dumps(bad.found))
    whole.rename(folder)
    shutil.rmtree(making)


def _clean(folder: Path, mine: Path) -> None:
    """Removes other unfinished builds that no process has locked or will resume."""
    for making in folder.glob("*.making"):
        if making == mine:
            continue
        with cache_lock.held_if_free(making.with_suffix(".lock")) as is_free:
            if is_free and (making.with_suffix("").is_dir() or _is_old(making)):
                shutil.rmtree(making)


def _is_old(making: Path) -> bool:
    changed = max(path.stat().st_mtime for path in (making, *making.iterdir()))
    return time.time() - changed > LEFTOVER_S
