"""A corpus as two streams of tokens on disk, made once by whichever process comes first."""

import fcntl
import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainer.data import tokenizer
from trainer.data.documents import BadRecords, Document, documents
from trainer.data.tokenizer import BYTES
from trainer.folders import cache_folder
from trainer.spec import corpus
from trainer.spec.job import Data

FORMAT = "2"
BAD_RECORDS = "bad_records.json"
LOCK_DEADLINE_S = 900
GROUP_BYTES = 1 << 20
PROGRESS_EVERY_S = 0.5

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


@dataclass(frozen=True)
class Tokens:
    """Streams of tokens, each document after its separator; the arrays stay on disk (mmap)."""

    corpus_sha256: str
    held_in: np.ndarray
    held_out: np.ndarray
    bad: BadRecords = field(default_factory=lambda: BadRecords(0))
    """What is left out."""

    separator: int = BYTES.separator

    def boundary(self, data: Data) -> int | None:
        """The token at which attention stops; None: at none."""
        return self.separator if data.document_boundaries else None

    def sequences(self, seq_len: int) -> int:
        """Training examples of `seq_len` tokens, each with the token that follows its last."""
        return max(0, (len(self.held_in) - 1) // seq_len)


def load(data: Data, progress: Progress = lambda done, total: None) -> Tokens:
    """The job's corpus, from the cache or tokenized now. Raises corpus.DataError."""
    sha256 = corpus.digest(data)
    key = hashlib.sha256(f"{FORMAT} {sha256} {data.tokenizer} {data.held_out}".encode())
    folder = cache_folder() / "tokens" / key.hexdigest()[:32]
    if not folder.is_dir():
        _make(folder, data, progress)
    bad = BadRecords(data.max_bad_records, json.loads((folder / BAD_RECORDS).read_text()))
    bad.check()
    held_in, held_out = (
        np.load(folder / f"{part}.npy", mmap_mode="r") for part in ("held_in", "held_out")
    )
    return Tokens(sha256, held_in, held_out, bad, tokenizer.of(data).separator)


def check(tokens: Tokens, data: Data) -> None:
    """Raises corpus.DataError where the data cannot serve the job."""
    have = len(tokens.held_in)
    if have < data.seq_len + 1:
        raise corpus.DataError(
            f"the corpus has {have:,} tokens for training, a sequence needs {data.seq_len + 1:,}: "
            "take a smaller data.seq_len or more text"
        )
    sequences = tokens.sequences(data.seq_len)
    if sequences < data.global_batch:
        raise corpus.DataError(
            f"the corpus gives {sequences:,} sequences of {data.seq_len}, fewer than one global "
            f"batch of {data.global_batch}: take a smaller data.global_batch or more text"
        )


def held_out_names(names: list[str], share: float) -> set[str]:
    """Documents kept for evaluation, chosen by a hash of their names.

    Adding a document moves no other one between the parts, except that each part has at least one
    document where there are two.
    """
    if share == 0 or len(names) < 2:
        return set()
    ordered = sorted(names, key=_place)
    count = sum(_place(name) < share for name in names)
    return set(ordered[: min(max(count, 1), len(names) - 1)])


def _place(name: str) -> float:
    """A number in [0, 1) that the name alone decides."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64


def _make(folder: Path, data: Data, progress: Progress) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if folder.is_dir():
            return
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix="making-"))
        try:
            _write(scratch, data, progress)
            scratch.rename(folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def _write(folder: Path, data: Data, progress: Progress) -> None:
    total = sum(file.path.stat().st_size for file in corpus.files(data))
    bad, shown = BadRecords(data.max_bad_records), 0.0
    tokens: dict[str, np.ndarray] = {}
    encoder = tokenizer.of(data)
    for some in _groups(documents(data, bad)):
        encoded = encoder.encode_all([document.text for document in some])
        tokens.update(zip((document.name for document in some), encoded, strict=True))
        if time.monotonic() - shown > PROGRESS_EVERY_S:
            progress(some[-1].read, total)
            shown = time.monotonic()
    kept = held_out_names(list(tokens), data.held_out)
    empty = np.empty(0, encoder.dtype)
    for part, is_of_it in (("held_in", False), ("held_out", True)):
        arrays = [array for name, array in tokens.items() if (name in kept) == is_of_it]
        np.save(folder / f"{part}.npy", np.concatenate([empty, *arrays]))
    (folder / BAD_RECORDS).write_text(json.dumps(bad.found))
    progress(total, total)


def _groups(found: Iterable[Document]) -> Iterator[list[Document]]:
    """So many at a time that a tokenizer has work for all cores, and progress is seen."""
    group: list[Document] = []
    size = 0
    for document in found:
        group.append(document)
        size += len(document.text)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`; TimeoutError where another process keeps it too long."""
    deadline = time.monotonic() + LOCK_DEADLINE_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    text = f"another process has held {path} for {LOCK_DEADLINE_S} s"
                    raise TimeoutError(text) from None
                time.sleep(0.1)
        yield
