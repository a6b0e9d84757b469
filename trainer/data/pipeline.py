"""The examples of every global batch, as a pure function of (seed, step), read through Grain.

One shuffled sequence of examples, epoch after epoch, is cut into global batches; process p of n
reads its block of each. The sources of a mixture are interleaved in it; each has its own shuffle
and its own epochs. Neither n nor the mesh changes which examples a step sees, and any step can be
reached directly.
"""

import hashlib
import json
from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import accumulate

import grain

from trainer.contract.config.data import Data
from trainer.contract.planning.plan import BatchSplit
from trainer.contract.records.exclusions import Exclusion
from trainer.data.interleaver import Interleaver, Mixed
from trainer.data.kept_order import KeptOrder
from trainer.data.mixture import Mixture
from trainer.data.packing import Batch, example, held_out_example, pair_example, stack
from trainer.data.token_cache import Tokens

READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)


def example_order(sequences: int, seed: int) -> grain.MapDataset[int]:
    """Returns an order: item i is the i-th example trained on, with a new shuffle every epoch."""
    return grain.MapDataset.range(sequences).seed(seed).shuffle().repeat()


def source_orders(
    tokens: Tokens | Mixture, seq_len: int, seed: int, excluded: Sequence[Exclusion] = ()
) -> list[KeptOrder]:
    """Returns the order of each source, without the examples that are excluded.

    An exclusion names positions of the mixed order; each source has its share of them.
    """
    interleaver = Interleaver(tokens.weights)
    bounds = [
        (interleaver.before(one.first), interleaver.before(one.first + one.count))
        for one in excluded
    ]
    orders = []
    for number, part in enumerate(tokens.parts):
        size = part.sequences(seq_len)
        removed = [range(first[number], last[number]) for first, last in bounds]
        orders.append(KeptOrder(example_order(size, seed + number), size, removed))
    return orders


def mixed_order(
    tokens: Tokens | Mixture, seq_len: int, seed: int, excluded: Sequence[Exclusion] = ()
) -> grain.MapDataset[int]:
    """Returns the interleaved order of all sources, whose examples are numbered consecutively."""
    orders = source_orders(tokens, seq_len, seed, excluded)
    sizes = [part.sequences(seq_len) for part in tokens.parts]
    return orders[0] if len(orders) == 1 else Mixed(orders, sizes, Interleaver(tokens.weights))


def order_hash(tokens: Tokens | Mixture, data: Data, seed: int) -> str:
    """Returns a hash of what the order of all examples depends on, in 16 hexadecimal digits."""
    parts = (
        tokens.corpus_sha256, data.seq_len, data.validation_fraction, list(tokens.weights), seed
    )  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class BlockOfBatches(grain.MapDataset):
    """The items of one block of every global batch, in the order of the batches.

    Batch 0 begins with item `shift` of the order.
    """

    def __init__(
        self, order: grain.MapDataset, global_batch: int, index: int, count: int, shift: int = 0
    ):
        super().__init__(order)
        self._global_batch = global_batch
        self._rows = global_batch // count
        self._first = shift + index * self._rows

    def __len__(self) -> int:
        # Halved: Grain divides the length as a float, which rounds sys.maxsize up beyond what
        # len() can return.
        return len(self._parent) // 2 // self._global_batch * self._rows

    def __getitem__(self, index: int):  # type: ignore[override]
        batch, row = divmod(index, self._rows)
        return self._parent[batch * self._global_batch + self._first + row]


def training_batches(
    tokens: Tokens | Mixture,
    data: Data,
    seed: int,
    block: tuple[int, int],
    first_step: int,
    shift: int = 0,
    excluded: Sequence[Exclusion] = (),
) -> Iterator[Batch]:
    """Yields this block's rows of every global batch from `first_step` (from 1) on.

    `block` is the (index, count) of the block in a global batch. `shift` is the number of examples
    seen minus steps x `global_batch`; see `BatchLoader`. Arrays are (global_batch / count, S); a
    thread reads ahead.
    """
    order = mixed_order(tokens, data.seq_len, seed, excluded)
    firsts = [0, *accumulate(part.sequences(data.seq_len) for part in tokens.parts)]
    parts = tokens.parts

    def read(number: int) -> Batch:
        source = bisect(firsts, number) - 1
        part = parts[source]
        inputs = part.inputs(number - firsts[source], data.seq_len)
        if part.pairs:
            return pair_example(part.held_in[inputs], number, data.seq_len, part.tokenizer.eos_id)
        window = part.held_in[inputs.start : inputs.stop + 1]
        return example(window, number, part.boundary(data))

    rows = data.global_batch // block[1]
    blocks = BlockOfBatches(order, data.global_batch, *block, shift).map(read)
    batches = blocks.batch(rows, batch_fn=stack)
    iterator = iter(batches.to_iter_dataset(READ))
    grain.experimental.set_next_index(iterator, first_step - 1)
    return iterator


def epoch_of(examples: int, tokens: Tokens | Mixture, orders: Sequence[KeptOrder]) -> int:
    """Returns the epoch (from 1) of the last of `examples`; the highest of a mixture's sources.

    `orders` are those of the sources.
    """
    counts = Interleaver(tokens.weights).before(examples)
    return max(order.epoch(seen - 1) for seen, order in zip(counts, orders, strict=True) if seen)


def held_out_batches(
    tokens: Tokens, data: Data, batches: int, block: tuple[int, int]
) -> list[Batch]:
    """Returns this block's rows of up to `batches` fixed global batches, evenly spread."""
    sequences = _held_out_sequences(tokens, data.seq_len)
    count = min(batches * data.global_batch, sequences)
    numbers = [index * sequences // count for index in range(count)]
    # Rows past the end of the stream are padding of weight 0.
    numbers += [sequences] * (-count % data.global_batch)
    rows = data.global_batch // block[1]
    starts = range(block[0] * rows, len(numbers), data.global_batch)
    return [
        stack([_held_out(tokens, data, number) for number in numbers[start : start + rows]])
        for start in starts
    ]


def _held_out_sequences(tokens: Tokens, seq_len: int) -> int:
    if tokens.pairs:
        return len(tokens.pairs.held_out)
    return max(0, -(-(len(tokens.held_out) - 1) // seq_len))


def _held_out(tokens: Tokens, data: Data, number: int) -> Batch:
    """Returns a held-out example; the one after the last is padding."""
    if tokens.pairs and number < len(tokens.pairs.held_out):
        first, after = tokens.pairs.held_out[number].tolist()
        pair = tokens.held_out[first:after]
        return pair_example(pair, number, data.seq_len, tokens.tokenizer.eos_id)
    padding = number if tokens.pairs is None else len(tokens.held_out)
    return held_out_example(tokens.held_out, padding, data.seq_len, tokens.boundary(data))


def block_of(split: BatchSplit, process: int) -> tuple[int, int]:
    """Returns (index, count) of the block that a process reads.

    When each process has its own block, they are those of Grain's ShardByJaxProcess.
    """
    if split.blocks == len(split.block_of_process):
        shard = grain.sharding.ShardByJaxProcess(drop_remainder=True)
        return shard.shard_index, shard.shard_count
    return split.block_of_process[process], split.blocks
