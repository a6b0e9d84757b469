"""The examples of every global batch, as a pure function of (seed, step), read through Grain.

One shuffled sequence of examples, epoch after epoch, is cut into global batches; process p of n
reads its block of each. The sources of a mixture are interleaved in it; each has its own shuffle
and its own epochs. Neither n nor the mesh changes which examples a step sees, and any step can be
reached directly.
"""

from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate

import grain

from trainer.contract.config.data import Data
from trainer.contract.planning.plan import BatchSplit
from trainer.data.interleaver import Interleaver, Mixed
from trainer.data.mixture import Mixture
from trainer.data.packing import Batch, example, held_out_example, stack
from trainer.data.token_cache import Tokens

READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)


def example_order(sequences: int, seed: int) -> grain.MapDataset[int]:
    """Returns an order: item i is the i-th example trained on, with a new shuffle every epoch."""
    return grain.MapDataset.range(sequences).seed(seed).shuffle().repeat()


def mixed_order(tokens: Tokens | Mixture, seq_len: int, seed: int) -> grain.MapDataset[int]:
    """Returns the interleaved order of all sources, whose examples are numbered consecutively."""
    sizes = [part.sequences(seq_len) for part in tokens.parts]
    orders = [example_order(size, seed + number) for number, size in enumerate(sizes)]
    return orders[0] if len(orders) == 1 else Mixed(orders, sizes, Interleaver(tokens.weights))


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
) -> Iterator[Batch]:
    """Yields this block's rows of every global batch from `first_step` (from 1) on.

    `block` is the (index, count) of the block in a global batch. `shift` is the number of examples
    seen minus steps x `global_batch`; see `BatchLoader`. Arrays are (global_batch / count, S); a
    thread reads ahead.
    """
    order = mixed_order(tokens, data.seq_len, seed)
    firsts = [0, *accumulate(part.sequences(data.seq_len) for part in tokens.parts)]
    window, parts = data.seq_len + 1, tokens.parts

    def read(number: int) -> Batch:
        source = bisect(firsts, number) - 1
        start = (number - firsts[source]) * data.seq_len
        stream = parts[source].held_in[start : start + window]
        return example(stream, number, parts[source].boundary(data))

    rows = data.global_batch // block[1]
    blocks = BlockOfBatches(order, data.global_batch, *block, shift).map(read)
    batches = blocks.batch(rows, batch_fn=stack)
    iterator = iter(batches.to_iter_dataset(READ))
    grain.experimental.set_next_index(iterator, first_step - 1)
    return iterator


def epoch_of(examples: int, tokens: Tokens | Mixture, seq_len: int) -> int:
    """Returns the epoch (from 1) of the last of `examples`; the highest of a mixture's sources."""
    counts = Interleaver(tokens.weights).before(examples)
    pairs = zip(counts, tokens.parts, strict=True)
    return max((seen - 1) // part.sequences(seq_len) + 1 for seen, part in pairs if seen)


def held_out_batches(
    tokens: Tokens, data: Data, batches: int, block: tuple[int, int]
) -> list[Batch]:
    """Returns this block's rows of up to `batches` fixed global batches, evenly spread."""
    stream = tokens.held_out
    sequences = -(-(len(stream) - 1) // data.seq_len) if len(stream) > 1 else 0
    count = min(batches * data.global_batch, sequences)
    numbers = [index * sequences // count for index in range(count)]
    # Rows past the end of the stream are padding of weight 0.
    numbers += [sequences] * (-count % data.global_batch)
    rows = data.global_batch // block[1]
    starts = range(block[0] * rows, len(numbers), data.global_batch)
    return [
        stack(
            [
                held_out_example(stream, number, data.seq_len, tokens.boundary(data))
                for number in numbers[start : start + rows]
            ]
        )
        for start in starts
    ]


def block_of(split: BatchSplit, process: int) -> tuple[int, int]:
    """Returns (index, count) of the block that a process reads.

    When each process has its own block, they are those of Grain's ShardByJaxProcess.
    """
    if split.blocks == len(split.block_of_process):
        shard = grain.sharding.ShardByJaxProcess(drop_remainder=True)
        return shard.shard_index, shard.shard_count
    return split.block_of_process[process], split.blocks
