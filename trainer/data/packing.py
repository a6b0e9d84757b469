"""A window of the token stream as one example: inputs, targets, and document boundaries.

The stream is `SEP document SEP document ...`. A separator opens its document: it starts a new
segment, and positions count from it. As a target, it closes the document before it (the model
learns where texts end). Every target thus belongs to the document of its input, or ends it. The
letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainer.contract.planning import sequence_chunks

NO_TOKEN = -1
CHOSEN = 1
"""Segment of the chosen text in the example of a pair; the rejected one follows."""
Array = Any
"""A numpy array on the host, a jax.Array on the devices; this module imports no jax."""


class Stream(Protocol):
    """A sequence of tokens; slicing returns an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> np.ndarray: ...


class Batch(NamedTuple):
    """Examples as arrays. One example has dims (S,), a global batch (M, B, S).

    As a NamedTuple, it is a pytree: the same type holds host arrays and device arrays.
    """

    tokens: Array
    """Inputs, int32."""
    targets: Array
    """The token after each input, int32."""
    segments: Array
    """Number of the document that each input belongs to, int32: attention stays inside it."""
    positions: Array
    """Distance of each input from the start of its document, int32."""
    weights: Array
    """Weight of each target in the loss: 1, or 0 for padding and tokens that are not learned."""
    examples: Array
    """Number of each example in the corpus, int32: () for one example, (M, B) for a batch."""


def example(window: np.ndarray, number: int, eos_id: int | None) -> Batch:
    """Returns the example of `S + 1` consecutive tokens; without a separator it is one segment.

    `~token` marks a token that is not learned.
    """
    given = window.astype(np.int32)
    known = np.where(given < 0, ~given, given)
    tokens = known[:-1]
    indices = np.arange(len(tokens), dtype=np.int32)
    opens = tokens == (NO_TOKEN if eos_id is None else eos_id)
    return Batch(
        tokens=tokens,
        targets=known[1:],
        segments=np.cumsum(opens, dtype=np.int32),
        positions=indices - np.maximum.accumulate(np.where(opens, indices, 0)).astype(np.int32),
        weights=(given[1:] >= 0).astype(np.float32),
        examples=np.int32(number),
    )


def held_out_example(stream: Stream, number: int, seq_len: int, eos_id: int | None) -> Batch:
    """Returns example `number` of a stream, padded with targets of weight 0 at the stream's end."""
    window = stream[number * seq_len : (number + 1) * seq_len + 1]
    return padded_example(window, number, seq_len, eos_id)


def pair_example(pair: np.ndarray, number: int, seq_len: int, eos_id: int) -> Batch:
    """Returns the example of a pair's tokens, `SEP chosen SEP rejected`, closed and padded.

    The chosen text is segment CHOSEN. The separators after both texts are learned.
    """
    return padded_example(np.append(pair, eos_id), number, seq_len, eos_id)


def padded_example(window: np.ndarray, number: int, seq_len: int, eos_id: int | None) -> Batch:
    """Returns the example of up to `seq_len + 1` tokens, padded with targets of weight 0."""
    real = max(0, len(window) - 1)
    padded = np.concatenate([window, np.zeros(seq_len + 1 - len(window), window.dtype)])
    whole = example(padded, number, eos_id)
    return whole._replace(weights=whole.weights * (np.arange(seq_len) < real))


def in_order_of_chunks(x_xS: np.ndarray, chunks: int) -> np.ndarray:
    """Returns arrays of positions in the order of the plan's chunks: see `BatchSplit.chunks`."""
    if chunks == 1:
        return x_xS
    by_chunk = x_xS.reshape(*x_xS.shape[:-1], chunks, -1)
    return by_chunk[..., sequence_chunks.order(chunks), :].reshape(x_xS.shape)


def stack(examples: Sequence[Batch]) -> Batch:
    """Returns examples as one batch with a leading dim."""
    return Batch(*(np.stack(arrays) for arrays in zip(*examples, strict=True)))
