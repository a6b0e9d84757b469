"""Global batches on the devices, in order, with the next one always on its way."""

import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from trainer.data import pipeline
from trainer.data.mixture import Mixture
from trainer.data.packing import Batch, stack
from trainer.data.placement import place
from trainer.data.token_cache import Tokens
from trainer.spec.job import Job
from trainer.spec.plan import BatchSplit


class Feed:
    """This process's side of every global batch."""

    def __init__(
        self,
        job: Job,
        split: BatchSplit,
        tokens: Tokens | Mixture,
        shardings: Batch,
        shift: int = 0,
    ):
        """`shardings` are those of trainer/mesh.py.

        `shift`: examples seen beyond `global_batch` a step, where it was another one before.
        """
        self._job, self._split, self._tokens, self._shardings = job, split, tokens, shardings
        self._shift = shift
        self._block = pipeline.block_of(split, jax.process_index())
        self.wait_s = 0.0
        """How long the last training batch was waited for."""

    def training(self, first_step: int) -> Iterator[Batch]:
        """Global batches of `first_step` (from 1) and on, without end."""
        job = self._job
        blocks = pipeline.training_batches(
            self._tokens, job.data, job.seed, self._block, first_step, self._shift
        )
        while True:
            begin = time.perf_counter()
            batch = self._placed(next(blocks), self._split.micro_batches)
            self.wait_s = time.perf_counter() - begin
            yield batch

    @property
    def sources(self) -> dict[str, int]:
        """Name of each source -> its weight; one corpus has no name."""
        return dict(zip(self._tokens.names, self._tokens.weights, strict=True))

    def held_out(self, batches: int, source: int = 0) -> Iterator[Batch]:
        """The fixed batches of an evaluation, in the micro-batches that training has memory for."""
        data, micro_batches = self._job.data, self._split.micro_batches
        tokens = self._tokens.parts[source]
        for block in pipeline.held_out_batches(tokens, data, batches, self._block):
            yield self._placed(block, micro_batches)

    def given(self, examples: Sequence[Batch]) -> Iterator[Batch]:
        """Global batches of these examples in order; what fills up the last one has number -1."""
        size, (index, count) = self._job.data.global_batch, self._block
        nothing = examples[0]._replace(
            weights=np.zeros_like(examples[0].weights), examples=np.int32(-1)
        )
        full = [*examples, *[nothing] * (-len(examples) % size)]
        for start in range(index * size // count, len(full), size):
            block = stack(full[start : start + size // count])
            yield self._placed(block, self._split.micro_batches)

    def examples(self, step: int) -> int:
        """Examples trained on after `step`: the whole data position."""
        return step * self._job.data.global_batch + self._shift

    def epoch(self, step: int) -> int:
        """Epoch (from 1) that `step` ends in."""
        return pipeline.epoch_of(self.examples(step), self._tokens, self._job.data.seq_len)

    def _placed(self, block: Batch, micro_batches: int) -> Batch:
        return place(block, micro_batches, self._shardings, self._split.blocks)
