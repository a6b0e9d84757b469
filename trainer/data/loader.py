"""Global batches on the devices, in order, with a thread that reads ahead.

The rows that this process has read become parts of global arrays on its devices. The letters of
dims in array names are those of trainer/model/__init__.py.
"""

import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainer.contract.config.job import Job
from trainer.contract.planning import sharding_rules
from trainer.contract.planning.plan import BatchSplit, Plan
from trainer.contract.records.exclusions import Exclusions
from trainer.data import pipeline
from trainer.data.mixture import Mixture
from trainer.data.packing import Batch, in_order_of_chunks, stack
from trainer.data.token_cache import Tokens


def global_batch(block: Batch, grad_accum_steps: int, shardings: Batch, split: BatchSplit) -> Batch:
    """Builds a global batch (M, B, ...) from this process's block of it (M B / blocks, ...).

    On a torus, a process's rows are not contiguous in the global array. Its block fills the row
    slices that the sharding gives to its devices, from the first to the last. When positions are
    sharded, each device takes its part of them; the block has whole rows, which are brought into
    the order of the devices' chunks.
    """

    def global_array(rows: np.ndarray, sharding: NamedSharding) -> jax.Array:
        if rows.ndim > 1:
            rows = in_order_of_chunks(rows, split.chunks)
        micro = rows.reshape(grad_accum_steps, -1, *rows.shape[1:])
        shape = (grad_accum_steps, micro.shape[1] * split.blocks, *micro.shape[2:])
        local = _local_slices(sharding, shape)
        assert sum(stop - start for start, stop in local) == micro.shape[1], (local, micro.shape)

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            first = local[index[1].indices(shape[1])[:2]]
            start, stop, _ = index[1].indices(shape[1])
            return micro[:, first : first + stop - start, *index[2:]]

        return jax.make_array_from_callback(shape, sharding, part)

    return Batch(*map(global_array, block, shardings))


def _local_slices(sharding: NamedSharding, shape: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Returns (start, stop) of each row slice on local devices -> its first row in the block."""
    indices = sharding.addressable_devices_indices_map(shape).values()
    slices = sorted({index[1].indices(shape[1])[:2] for index in indices if index is not None})
    firsts = np.cumsum([0] + [stop - start for start, stop in slices])
    return {piece: int(first) for piece, first in zip(slices, firsts, strict=False)}


class BatchLoader:
    """Loads this process's part of every global batch."""

    def __init__(
        self,
        job: Job,
        split: BatchSplit,
        tokens: Tokens | Mixture,
        shardings: Batch,
        shift: int = 0,
        excluded: Exclusions = (),
    ):
        """Sets up loading with the `shardings` of `batch_shardings`.

        `shift` is the number of examples seen minus steps x `global_batch`. It is not 0 after a
        resume with another `global_batch`. `excluded` are the examples that are left out.
        """
        self._job, self._split, self._tokens, self._shardings = job, split, tokens, shardings
        self._shift, self.excluded = shift, excluded
        self._orders = pipeline.source_orders(tokens, job.data.seq_len, job.seed, excluded)
        self._block = pipeline.block_of(split, jax.process_index())
        self.wait_s = 0.0
        """Seconds spent waiting for the last training batch."""

    def training(self, first_step: int) -> Iterator[Batch]:
        """Yields global batches from `first_step` (counted from 1) on, without end.

        Arrays are (M, B, S) on the devices, and `examples` (M, B). A thread reads ahead; `wait_s`
        is the time that the last batch was waited for. Raises what reading the streams raises.
        """
        job = self._job
        blocks = pipeline.training_batches(
            self._tokens, job.data, job.seed, self._block, first_step, self._shift, self.excluded
        )
        while True:
            begin = time.perf_counter()
            batch = self._placed(next(blocks), self._split.grad_accum_steps)
            self.wait_s = time.perf_counter() - begin
            yield batch

    @property
    def sources(self) -> dict[str, int]:
        """Name of each source -> its weight; one corpus has no name."""
        return dict(zip(self._tokens.names, self._tokens.weights, strict=True))

    def validation(self, batches: int, source: int = 0) -> Iterator[Batch]:
        """Yields an evaluation's fixed batches, in micro-batches that fit in training's memory."""
        data, grad_accum_steps = self._job.data, self._split.grad_accum_steps
        tokens = self._tokens.parts[source]
        for block in pipeline.held_out_batches(tokens, data, batches, self._block):
            yield self._placed(block, grad_accum_steps)

    def given(self, count: int, example: Callable[[int], Batch]) -> Iterator[Batch]:
        """Yields global batches of `count` examples in order, each made when it is needed.

        Padding has the number -1.
        """
        size, (index, blocks) = self._job.data.global_batch, self._block
        real = example(0)
        padding = real._replace(weights=np.zeros_like(real.weights), examples=np.int32(-1))
        here = range(index * size // blocks, (index + 1) * size // blocks)
        for first in range(0, count, size):
            numbers = [first + row for row in here]
            block = stack([example(n) if n < count else padding for n in numbers])
            yield self._placed(block, self._split.grad_accum_steps)

    def examples(self, step: int) -> int:
        """Returns the examples trained on after `step`: the whole data position."""
        return step * self._job.data.global_batch + self._shift

    def epoch(self, step: int) -> int:
        """Returns the epoch (from 1) in which `step` ends."""
        return pipeline.epoch_of(self.examples(step), self._tokens, self._orders)

    def _placed(self, block: Batch, grad_accum_steps: int) -> Batch:
        return global_batch(block, grad_accum_steps, self._shardings, self._split)


def batch_shardings(mesh: Mesh) -> Batch:
    """Returns the shardings of a global batch's arrays (M, B, S).

    Each device has its positions of its rows of every micro-batch. The examples' numbers are
    (M, B).
    """
    rows = NamedSharding(mesh, PartitionSpec(None, sharding_rules.BATCH_AXES))
    tokens = NamedSharding(
        mesh, PartitionSpec(None, sharding_rules.BATCH_AXES, sharding_rules.RULES["sequence"])
    )
    return Batch(tokens, tokens, tokens, tokens, tokens, examples=rows)


def abstract_batch(job: Job, plan: Plan) -> Batch:
    """Returns the shapes of a global batch (M, B, S)."""
    micro = plan.batch.grad_accum_steps
    rows = (micro, plan.batch.global_batch // micro)
    whole = (*rows, job.data.seq_len)
    tokens = jax.ShapeDtypeStruct(whole, np.int32)
    weights = jax.ShapeDtypeStruct(whole, np.float32)
    return Batch(tokens, tokens, tokens, tokens, weights, jax.ShapeDtypeStruct(rows, np.int32))
