"""The shards of a state that this process has, each once, and their bytes on the host."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

Bounds = tuple[tuple[int, int], ...]
"""First position of a shard and the one after its last, in each dim of the array."""


class Place(NamedTuple):
    """A shard of this process, and where it is in a slot."""

    name: str
    index: Bounds
    offset: int
    size: int
    is_alone: bool
    """Whether no other host holds the same part of the array, and no earlier process of this host.
    """


class LocalShard(NamedTuple):
    """A shard of this process, on one of its devices."""

    place: Place
    data: jax.Array


def local_shards(flat: Mapping[str, jax.Array], processes_per_host: int = 1) -> list[LocalShard]:
    """Returns each distinct shard of this process once; those that it holds alone come first."""
    own = jax.process_index()
    found: list[tuple[bool, str, Bounds, jax.Array]] = []
    for name, leaf in flat.items():
        holders = _holders(leaf)
        shards = {bounds(one.index, leaf.shape): one.data for one in leaf.addressable_shards}
        for index, data in shards.items():
            hosts = {process // processes_per_host for process in holders[index]}
            is_alone = len(hosts) == 1 and min(holders[index]) == own
            found.append((is_alone, name, index, data))
    found.sort(key=lambda one: not one[0])
    local, offset = list[LocalShard](), 0
    for is_alone, name, index, data in found:
        local.append(LocalShard(Place(name, index, offset, data.nbytes, is_alone), data))
        offset += data.nbytes
    return local


def on_host(local: Sequence[LocalShard]) -> Iterator[np.ndarray]:
    """Yields the bytes of shards; the next one is copied from its device meanwhile."""
    for number, one in enumerate(local):
        if number + 1 < len(local):
            local[number + 1].data.copy_to_host_async()
        yield np.ascontiguousarray(one.data).reshape(-1).view(np.uint8)


def _holders(leaf: jax.Array) -> dict[Bounds, set[int]]:
    """Returns the processes that hold each shard of an array."""
    holders: dict[Bounds, set[int]] = defaultdict(set)
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders[bounds(index, leaf.shape)].add(device.process_index)
    return holders


def bounds(index: Sequence[slice] | None, shape: Sequence[int]) -> Bounds:
    """Returns the first position of a shard and the one after its last, in each dim."""
    assert index is not None
    return tuple(one.indices(size)[:2] for one, size in zip(index, shape, strict=True))
