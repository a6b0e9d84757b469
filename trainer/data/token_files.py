"""`source: tokens`: files of tokens as one stream, mapped into memory where they are.

The last share of the stream is held out, from the next separator on: documents have no names here.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from trainer.data.on_disk import on_disk
from trainer.spec.corpus import DataError, File, files, reading
from trainer.spec.data import Data
from trainer.spec.transient import retried
from trainer.spec.vocabulary import Vocabulary

KINDS = (np.dtype(np.uint16), np.dtype(np.uint32))
AT_ONCE = 1 << 24
"""Tokens that are looked at together."""


class Stream:
    """Arrays one after the other, or a part of that; a slice of it is read when it is asked for."""

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

    def split(self, at: int) -> "tuple[Stream, Stream]":
        """What is before `at`, and the rest."""
        befores = self._ends - [len(array) for array in self._arrays]
        pairs = list(zip(self._arrays, befores.tolist(), strict=True))
        head = [array[: max(0, at - before)] for array, before in pairs]
        tail = [array[max(0, at - before) :] for array, before in pairs]
        return Stream(head), Stream(tail)


def load(data: Data, vocabulary: Vocabulary) -> tuple[Stream, Stream]:
    """What is trained on, and what is held out. Raises DataError."""
    stream = Stream(
        [retried(str(file.path), partial(_opened, file, data, vocabulary)) for file in files(data)]
    )
    return stream.split(_cut(stream, data.held_out, vocabulary.separator))


def _opened(file: File, data: Data, vocabulary: Vocabulary) -> np.ndarray:
    with reading(file):
        pass
    array = _mapped(file, data)
    for first in range(0, len(array), AT_ONCE):
        largest = int(array[first : first + AT_ONCE].max())
        if largest >= vocabulary.size:
            raise DataError(
                f"data.path: {file.path} has the token {largest:,}, and data.tokenizer "
                f"{vocabulary.size:,} of them: name the tokenizer that made the file, or its dtype"
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
                raise ValueError("the name of a file of tokens ends in .npy or .bin")
    except (ValueError, EOFError) as error:
        raise DataError(f"data.path: {file.path} cannot be read as tokens: {error}") from None
    if array.ndim != 1 or array.dtype not in KINDS:
        raise DataError(
            f"data.path: {file.path} holds {array.dtype} of shape {array.shape}, wanted are "
            "uint16 or uint32 in one row"
        )
    return array


def _cut(stream: Stream, share: float, separator: int) -> int:
    """Where the part that is held out begins: at the next separator, if one follows."""
    first = len(stream) - int(share * len(stream))
    for start in range(first, len(stream), AT_ONCE):
        (found,) = np.nonzero(stream[start : start + AT_ONCE] == separator)
        if len(found):
            return start + int(found[0])
    return first
