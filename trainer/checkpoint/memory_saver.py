"""In-memory checkpoints: copies of the state in the memory of the hosts, every few steps.

Each process writes its shards into a slot of its host's agent. Those that no other host has go to
a neighbor's agent too, beside the next steps. A checkpoint is complete when every process has done
both. Slots are of two kinds, two of each; the newest complete checkpoint is never overwritten.

The processes do not talk about this. Before the step of the next checkpoint, each waits for its own
copy. When that step is done, all processes have taken part in it, so the last checkpoint is
complete.

References:
    Checkpoints in the memory of hosts, with copies on others: Z. Wang et al., "GEMINI: Fast Failure
    Recovery in Distributed Training with In-Memory Checkpoints", SOSP 2023
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple

import jax
import numpy as np

from trainer.checkpoint.facts import Progress, RunFacts, array_facts
from trainer.checkpoint.memory_client import HostMemory, HostMemoryError, write
from trainer.checkpoint.tree import flatten
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import WarningEvent
from trainer.contract.protocol.host_memory import Address, Content, Shard, Stamp
from trainer.distributed import consensus
from trainer.step.train_step import TrainState
from trainer.telemetry.events import Events

SHARE = 0.01
"""Share of the time of steps that copies to memory may take when their interval is `auto`."""
WARM_UP = (2, 6)
"""The first steps that are saved when the interval is `auto`: the second one is measured."""
COPY_TIMEOUT_S = 600.0
Bounds = tuple[tuple[int, int], ...]
"""First position of a shard and the one after its last, in each dim of the array."""


class Interval:
    """Decides which steps are saved; alike on all processes."""

    def __init__(self, wanted: int | Literal["auto"], first_step: int) -> None:
        """`first_step` is the number of steps done at the start of the attempt."""
        self._first = first_step
        self._every = None if wanted == "auto" else wanted
        self._offset = 0
        self._measured_from: tuple[int, float] | None = None

    def is_due(self, step: int) -> bool:
        """Returns whether the state after `step` is saved."""
        if self._every is None:
            return step - self._first in WARM_UP
        return (step - self._offset) % self._every == 0

    def saved(self, step: int, began_s: float, ended_s: float) -> None:
        """Takes the time of a save. Chooses the interval after the second one if it is `auto`."""
        if self._every is not None:
            return
        if self._measured_from is None:
            self._measured_from = step, ended_s
            return
        before, since_s = self._measured_from
        step_s = (began_s - since_s) / (step - before)
        is_first = jax.process_index() == 0
        own = str(interval(ended_s - began_s, step_s)) if is_first else None
        self._every = int(consensus.broadcast("memory/interval", own))
        self._offset = step


def interval(save_s: float, step_s: float) -> int:
    """Returns after how many steps a save of `save_s` takes at most SHARE of the time."""
    return max(1, math.ceil(save_s / (SHARE * max(step_s, 1e-6))))


class MemorySaver:
    """Saves the state of this process in memory. Every process must call the same methods."""

    def __init__(
        self,
        own: HostMemory | None,
        run: RunFacts,
        restored: Stamp | None,
        events: Events,
    ) -> None:
        """`own` is the memory of this host; None without an agent. `restored` is kept at first."""
        self._own, self._run, self._events = own, run, events
        self._kept = restored
        self._neighbor = _neighbor(own, run)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="memory")
        self._copy: Future[None] | None = None
        self._saved: Stamp | None = None
        self._has_warned = False

    def save(self, progress: Progress, state: TrainState[jax.Array]) -> None:
        """Writes this process's shards into its host's memory, and begins to copy them.

        Call `settle` before the step that precedes it.
        """
        flat = flatten(state)
        metadata = self._run.metadata(progress, array_facts(flat)).model_dump_json()
        if self._own is None:
            return
        self._kept, self._saved = self._saved or self._kept, None
        local = local_shards(flat)
        stamp = Stamp(self._run.attempt, progress.step)
        content = Content(stamp, jax.process_index(), [one.shard for one in local], metadata)
        try:
            number, path = self._own.reserve(sum(one.shard.size for one in local), self._kept)
            write(path, _on_host(local))
            self._own.commit(number, content)
        except HostMemoryError as error:
            self._warn(f"step {progress.step} is not in the memory of a host: {error}")
            return
        self._saved = stamp
        alone = [one.shard for one in local if one.is_alone]
        if self._neighbor is not None and alone:
            copy = Content(stamp, jax.process_index(), alone, metadata)
            self._copy = self._thread.submit(
                self._neighbor.store, path, sum(one.size for one in alone), self._kept, copy
            )

    def settle(self) -> None:
        """Waits until the neighbor has the last save."""
        copy, self._copy = self._copy, None
        if copy is None:
            return
        try:
            copy.result(COPY_TIMEOUT_S)
        except (HostMemoryError, TimeoutError) as error:
            self._warn(f"the neighbor of a host has no copy of its state: {error}")

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._events.emit(WarningEvent(message=f"in-memory checkpoints: {message}"))


def _neighbor(own: HostMemory | None, run: RunFacts) -> HostMemory | None:
    """Returns the memory that gets the copies of this process; None when there is none."""
    consensus.publish("memory/address", str(own.address) if own else "")
    neighbor = neighbor_of(jax.process_index(), run.plan.world)
    if neighbor == jax.process_index():
        return None
    address = consensus.published("memory/address", neighbor)
    return HostMemory(Address.parse(address), run.attempt) if address else None


class LocalShard(NamedTuple):
    """A shard of this process, in the order in which a slot holds them."""

    shard: Shard
    data: jax.Array
    is_alone: bool
    """Whether no other process holds the same part of the array."""


def local_shards(flat: Mapping[str, jax.Array]) -> list[LocalShard]:
    """Returns each distinct shard of this process once; those that it holds alone come first."""
    found: list[tuple[bool, str, Bounds, jax.Array]] = []
    for name, leaf in flat.items():
        holders = _holders(leaf)
        shards = {bounds(one.index, leaf.shape): one.data for one in leaf.addressable_shards}
        found += [(len(holders[index]) == 1, name, index, data) for index, data in shards.items()]
    found.sort(key=lambda one: not one[0])
    local, offset = list[LocalShard](), 0
    for is_alone, name, index, data in found:
        local.append(LocalShard(Shard(name, index, offset, data.nbytes), data, is_alone))
        offset += data.nbytes
    return local


def _on_host(local: Sequence[LocalShard]) -> Iterator[np.ndarray]:
    """Yields the data of shards; the next one is copied from its device meanwhile."""
    for number, one in enumerate(local):
        if number + 1 < len(local):
            local[number + 1].data.copy_to_host_async()
        yield np.asarray(one.data)


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


def neighbor_of(process: int, world: World) -> int:
    """Returns the process that keeps the copy: in the next slice if there are several."""
    distance = world.hosts_per_slice if world.slices > 1 else 1
    return (process + distance) % world.processes
