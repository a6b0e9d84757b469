"""The pairs of `source: preference` in the token streams: each is one example.

A pair is `SEP prompt chosen SEP prompt rejected`.
"""

from typing import NamedTuple

import numpy as np

from trainer.contract.config.data import Data
from trainer.contract.storage import corpus
from trainer.data.documents import BadRecords


class Pairs(NamedTuple):
    """First token of each pair and the one after its last, in both streams: (pairs, 2)."""

    held_in: np.ndarray
    held_out: np.ndarray


def find(
    held_in: np.ndarray,
    held_out: np.ndarray,
    documents: np.ndarray,
    eos_id: int,
    data: Data,
    bad: BadRecords,
) -> Pairs:
    """Returns the pairs that fit in `seq_len` tokens. The others count as bad records.

    `documents` has the first token, file and line of each training pair. Raises DataError when
    more records are bad than the job allows.
    """
    files = corpus.files(data)
    names = [f"{files[file].path}:{line}" for _, file, line in documents.tolist()]
    trained = _fitting(_bounds(held_in, eos_id), names, data.seq_len, bad)
    kept = _bounds(held_out, eos_id)
    numbered = [f"validation pair {number}" for number in range(1, len(kept) + 1)]
    return Pairs(trained, _fitting(kept, numbered, data.seq_len, bad))


def _bounds(stream: np.ndarray, eos_id: int) -> np.ndarray:
    """Returns the bounds of all pairs: each has two separators, one before each text."""
    starts = np.flatnonzero(stream == eos_id)[::2]
    return np.stack([starts, np.append(starts, len(stream))[1:]], axis=1)


def _fitting(bounds: np.ndarray, names: list[str], seq_len: int, bad: BadRecords) -> np.ndarray:
    sizes = bounds[:, 1] - bounds[:, 0]
    for number in np.flatnonzero(sizes > seq_len).tolist():
        size, longest = int(sizes[number]), int(sizes.max())
        bad.add(
            f"{names[number]}: the pair has {size:,} tokens, more than data.seq_len ({seq_len:,}); "
            f"the longest has {longest:,}"
        )
    return bounds[sizes <= seq_len]
