"""Rows that this process has read, as global arrays on its devices."""

import jax
import numpy as np
from jax.sharding import NamedSharding

from trainer.data.packing import Batch


def place(block: Batch, micro_batches: int, shardings: Batch, blocks: int) -> Batch:
    """A global batch (M, B, ...) from this process's block of it (rows, ...).

    On a torus the rows of a process are not neighbours in the global array: it fills the row slices
    that the sharding gives to its devices, from the first to the last. Where positions are split,
    each device takes its part of them; the block has whole rows.
    """

    def global_array(rows: np.ndarray, sharding: NamedSharding) -> jax.Array:
        micro = rows.reshape(micro_batches, -1, *rows.shape[1:])
        shape = (micro_batches, micro.shape[1] * blocks, *micro.shape[2:])
        local = _local_slices(sharding, shape)
        assert sum(stop - start for start, stop in local) == micro.shape[1], "blocks of the plan"

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            first = local[index[1].indices(shape[1])[:2]]
            start, stop, _ = index[1].indices(shape[1])
            return micro[:, first : first + stop - start, *index[2:]]

        return jax.make_array_from_callback(shape, sharding, part)

    return Batch(*map(global_array, block, shardings))


def _local_slices(sharding: NamedSharding, shape: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """(start, stop) of each row slice on this process's devices -> its first row in the block."""
    indices = sharding.addressable_devices_indices_map(shape).values()
    slices = sorted({index[1].indices(shape[1])[:2] for index in indices if index is not None})
    firsts = np.cumsum([0] + [stop - start for start, stop in slices])
    return {piece: int(first) for piece, first in zip(slices, firsts, strict=False)}
