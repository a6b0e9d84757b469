"""The tokens of a corpus as memory-mapped streams.

A corpus is tokenized in shards, then joined to two streams, training and validation. Files of
`source: tokens` are read in place, as one stream. Its last share is held out, from the next
separator on: these documents have no names.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from trainer.contract.config.data import Data
from trainer.contract.storage import corpus
from trainer.contract.storage.corpus import DataError, File, files, reading
from trainer.contract.storage.retries import retried
from trainer.contract.storage.tokenizer_info import Vocabulary
from trainer.data.cache_lock import Report
from trainer.data.documents import (
    START,
    BadRecords,
    Document,
    HeldOut,
    Position,
    documents,
    hash_to_unit,
)
from trainer.data.readers import on_disk
from trainer.data.tokenizer import Tokenizer

SHARD_BYTES = 8 << 20
"""Bytes of text in a shard. For each of them, the Rust library takes about 40 bytes of memory."""
HELD_IN, HELD_OUT = "held_in.npy", "held_out.npy"
DOCUMENTS = "documents.npy"
"""For each training document its first token, its file and its line: int64, three in a row."""


class Group(NamedTuple):
    """Consecutive documents that become one shard."""

    documents: list[Document]
    bad: int
    """Number of records left out up to its last document."""


def tokenize(folder: Path, data: Data, encoder: Tokenizer, report: Report) -> BadRecords:
    """Writes the shards that are not in `folder` yet; returns the bad records of all shards.

    Raises DataError when a file cannot be read, or more records are bad than the job allows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(file.size for file in corpus.files(data))
    bad, start, number = BadRecords(data.max_bad_records), START, 0
    for shard in _finished(folder):
        bad.found += json.loads(str(shard["bad"]))
        start, number = Position(*shard["end"].tolist()), number + 1
    bad.check()
    report(start.read, total)
    written = len(bad.found)
    for group in _groups(documents(data, bad, start), bad):
        _save(_path(folder, number), group.documents, encoder, bad.found[written : group.bad])
        number, written = number + 1, group.bad
        report(group.documents[-1].end.read, total)
    return bad


def join(folder: Path, into: Path, share: float, dtype: type, report: Report) -> None:
    """Writes the documents of all shards in order, as two streams: `share` of them is held out.

    Beside the streams, writes where each training document comes from.
    """
    held_out, total = HeldOut(share), 0
    for shard in _finished(folder):
        held_out.add(shard["hashes"])
        total = shard["end"].tolist()[-1]
    threshold, sizes = held_out.threshold, np.zeros(2, np.int64)
    for shard in _finished(folder):
        is_out = shard["hashes"] < threshold
        sizes += [shard["lengths"][is_out == out].sum() for out in (False, True)]
    with (into / HELD_IN).open("wb") as held_in_file, (into / HELD_OUT).open("wb") as held_out_file:
        files = (held_in_file, held_out_file)
        for file, size in zip(files, sizes.tolist(), strict=True):
            _begin(file, size, dtype)
        for shard in _finished(folder):
            is_out = np.repeat(shard["hashes"] < threshold, shard["lengths"])
            tokens = shard["tokens"]
            for file, out in zip(files, (False, True), strict=True):
                file.write(tokens[is_out == out].tobytes())
            report(total, total)
        for file in files:
            _sync(file)
    _join_places(folder, into, threshold)


def _join_places(folder: Path, into: Path, threshold: float) -> None:
    """Writes the table of the training documents of all shards."""
    count = sum(int((shard["hashes"] >= threshold).sum()) for shard in _finished(folder))
    with (into / DOCUMENTS).open("wb") as file:
        _begin(file, 3 * count, np.int64)
        first = 0
        for shard in _finished(folder):
            is_in = shard["hashes"] >= threshold
            lengths = shard["lengths"][is_in].astype(np.int64)
            firsts = first + np.cumsum(lengths) - lengths
            file.write(np.column_stack([firsts, shard["places"][is_in]]).tobytes())
            first += int(lengths.sum())
        _sync(file)


def _groups(found: Iterable[Document], bad: BadRecords) -> Iterator[Group]:
    group, size, left_out = list[Document](), 0, 0
    for document in found:
        group.append(document)
        size, left_out = size + len(document.text), len(bad.found)
        if size >= SHARD_BYTES:
            yield Group(group, left_out)
            group, size = [], 0
    if group:
        yield Group(group, left_out)


def _save(path: Path, group: list[Document], encoder: Tokenizer, bad: list[str]) -> None:
    encoded = list(_encoded(group, encoder))
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate(encoded),
            lengths=np.array([len(tokens) for tokens in encoded]),
            hashes=hash_to_unit(document.name for document in group),
            places=np.array([document.place for document in group], np.int64),
            bad=np.array(json.dumps(bad)),
            end=np.array(group[-1].end),
        )
        _sync(file)
    unfinished.rename(path)


def _encoded(group: list[Document], encoder: Tokenizer) -> Iterator[np.ndarray]:
    texts = [document.text for document in group]
    if group[0].answers is None:
        return encoder.encode_all(texts)
    found = encoder.encode_answers(texts, [document.answers or () for document in group])
    rejected = [document.rejected for document in group if document.rejected]
    if not rejected:
        return found
    others = encoder.encode_answers(
        [one.text for one in rejected], [one.answers for one in rejected]
    )
    return map(np.concatenate, zip(found, others, strict=True))


def _finished(folder: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """Yields the finished shards in order; an array is read on access."""
    number = 0
    while (path := _path(folder, number)).exists():
        with np.load(path) as shard:
            yield shard
        number += 1


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npz"


def _begin(file: BinaryIO, size: int, dtype: type) -> None:
    """Writes the header of a .npy file."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, header)


def _sync(file: BinaryIO) -> None:
    """Syncs a file to disk: after a power failure, no name may exist without its content."""
    file.flush()
    os.fsync(file.fileno())


KINDS = (np.dtype(np.uint16), np.dtype(np.uint32))
TOKENS_PER_CHECK = 1 << 24


class Stream:
    """Concatenated arrays, or a part of them; a slice is read on access."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays])
        self.dtype = np.result_type(*arrays)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(len(self))
        found = [np.empty(0, self.dtype)]
        for number in range(int(np.searchsorted(self._ends, start, "right")), len(self._arrays)):
            array = self._arrays[number]
            before = int(self._ends[number]) - len(array)
            if before >= stop:
                break
            found.append(array[max(0, start - before) : stop - before])
        return np.concatenate(found)

    def file(self, position: int) -> tuple[int, int, int]:
        """Returns the array of a position, the position in it, and the tokens from there on."""
        number = int(np.searchsorted(self._ends, position, "right"))
        end = int(self._ends[number])
        return number, position - (end - len(self._arrays[number])), end - position

    def split(self, at: int) -> "tuple[Stream, Stream]":
        """Returns the part before `at`, and the rest."""
        befores = self._ends - [len(array) for array in self._arrays]
        pairs = list(zip(self._arrays, befores.tolist(), strict=True))
        head = [array[: max(0, at - before)] for array, before in pairs]
        tail = [array[max(0, at - before) :] for array, before in pairs]
        return Stream(head), Stream(tail)


def load(data: Data, vocabulary: Vocabulary) -> tuple[Stream, Stream]:
    """Returns the training stream and the held-out stream. Raises DataError."""
    stream = Stream(
        [retried(str(file.path), partial(_opened, file, data, vocabulary)) for file in files(data)]
    )
    return stream.split(_cut(stream, data.validation_fraction, vocabulary.eos_id))


def _opened(file: File, data: Data, vocabulary: Vocabulary) -> np.ndarray:
    with reading(file):
        pass
    array = _mapped(file, data)
    for first in range(0, len(array), TOKENS_PER_CHECK):
        largest = int(array[first : first + TOKENS_PER_CHECK].max())
        if largest >= vocabulary.size:
            raise DataError(
                f"data.path: {file.path} contains token {largest:,}, but data.tokenizer has "
                f"{vocabulary.size:,} tokens. Set data.tokenizer to the one that made the file, "
                "or data.dtype to the type of its tokens"
            )
    return array


def _mapped(file: File, data: Data) -> np.ndarray:
    try:
        match file.path.suffix:
            case ".npy":
                array = np.load(on_disk(file), mmap_mode="r")
            case ".bin":
                array = np.memmap(on_disk(file), data.dtype, "r")
            case _:
                raise ValueError("the file name must end in .npy or .bin")
    except (ValueError, EOFError) as error:
        raise DataError(f"data.path: {file.path} cannot be read as tokens: {error}") from None
    if array.ndim != 1 or array.dtype not in KINDS:
        raise DataError(
            f"data.path: {file.path} holds {array.dtype} of shape {array.shape}, expected a "
            "one-dimensional array of uint16 or uint32"
        )
    return array


def _cut(stream: Stream, share: float, eos_id: int) -> int:
    """Returns the start of the held-out part: the next separator, if one follows."""
    first = len(stream) - int(share * len(stream))
    for start in range(first, len(stream), TOKENS_PER_CHECK):
        (found,) = np.nonzero(stream[start : start + TOKENS_PER_CHECK] == eos_id)
        if len(found):
            return start + int(found[0])
    return first
