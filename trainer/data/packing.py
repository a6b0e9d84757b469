"""A window of the token stream as one example: inputs, targets, and where documents begin.

The stream is `SEP document SEP document ...`. A separator opens its document: it starts a new
segment, and positions count from it. As a target it closes the document before it (the model learns
where texts end), so every target belongs to the document of its input, or ends it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

NO_TOKEN = -1
Array = Any
"""Of numpy on the host, of jax on the devices; this module imports no jax."""


class Stream(Protocol):
    """Tokens in a row; a slice is an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> np.ndarray: ...


class Batch(NamedTuple):
    """Examples as arrays. One example has dims (S,), a global batch (M, B, S); see trainer/model.

    A NamedTuple, so that it is a pytree: the same type holds host arrays and device arrays.
    """

    tokens: Array
    targets: Array
    segments: Array
    positions: Array
    weights: Array
    """Of each target in the loss: 1, or 0 for padding and for what is not learned."""
    examples: Array
    """Number of each example in the corpus; no dim for positions."""


def example(window: np.ndarray, number: int, separator: int | None) -> Batch:
    """The example of `S + 1` consecutive tokens; without a separator it is one segment.

    ~token stands for one that is not learned.
    """
    given = window.astype(np.int32)
    known = np.where(given < 0, ~given, given)
    tokens = known[:-1]
    places = np.arange(len(tokens), dtype=np.int32)
    opens = tokens == (NO_TOKEN if separator is None else separator)
    return Batch(
        tokens=tokens,
        targets=known[1:],
        segments=np.cumsum(opens, dtype=np.int32),
        positions=places - np.maximum.accumulate(np.where(opens, places, 0)).astype(np.int32),
        weights=(given[1:] >= 0).astype(np.float32),
        examples=np.int32(number),
    )


def held_out_example(stream: Stream, number: int, seq_len: int, separator: int | None) -> Batch:
    """Example `number` of a stream, padded with targets of weight 0 where the stream ends."""
    window = stream[number * seq_len : (number + 1) * seq_len + 1]
    real = max(0, len(window) - 1)
    padded = np.concatenate([window, np.zeros(seq_len + 1 - len(window), window.dtype)])
    whole = example(padded, number, separator)
    return whole._replace(weights=whole.weights * (np.arange(seq_len) < real))


def stack(examples: Sequence[Batch]) -> Batch:
    """Examples as one batch with a leading dim."""
    return Batch(*(np.stack(arrays) for arrays in zip(*examples, strict=True)))
