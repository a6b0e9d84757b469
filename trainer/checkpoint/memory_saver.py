"""In-memory checkpoints: copies of the state in the memory of the hosts, every few steps.

Each process copies its shards into a slot of its host's agent. Beside the next steps, it commits
the slot with the digests, and sends the shards that no other host has to a neighbor's agent. A
checkpoint is complete when every process has done both. A memory has two slots for a host's own
shards and two for copies; the newest complete checkpoint is never overwritten.

The processes do not talk about this. Before the step of the next checkpoint, each waits for its own
save. When that step is done, all processes have taken part in it, so the last checkpoint is
complete.

References:
    Checkpoints in the memory of hosts, with copies on others: Z. Wang et al., "GEMINI: Fast Failure
    Recovery in Distributed Training with In-Memory Checkpoints", SOSP 2023,
    https://doi.org/10.1145/3600006.3613145
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np

from trainer.checkpoint.digests import part_digest
from trainer.checkpoint.facts import Progress, RunFacts
from trainer.checkpoint.local_shards import LocalShard, Place, local_shards, on_host
from trainer.checkpoint.memory_client import HostMemory, HostMemoryError, mapping
from trainer.checkpoint.tree import flatten
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import WarningEvent
from trainer.contract.protocol.host_memory import Address, Content, Shard, Stamp
from trainer.contract.records.checkpoint_metadata import Array
from trainer.distributed import consensus
from trainer.step.train_state import TrainState
from trainer.telemetry.events import Events

COPY_TIMEOUT_S = 600.0


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
        self._mapped: dict[tuple[str, int], np.ndarray] = {}
        """The bytes of slots, by path and size: the page faults of a mapping cost much once."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="memory")
        self._saving: Future[Stamp | None] | None = None
        self._has_warned = False
        self.background_s = 0.0
        """Seconds of the devices that the last save took while steps ran: on CPU, all of it."""

    def save(self, progress: Progress, state: TrainState[jax.Array]) -> None:
        """Copies this process's shards into its host's memory; the rest of the save follows.

        Call `settle` before the step whose state is saved.
        """
        if self._own is None:
            return
        flat = flatten(state)
        local = local_shards(flat, self._run.plan.world.processes_per_host)
        size = sum(one.place.size for one in local)
        try:
            number, path = self._own.reserve(size, self._kept)
            mapped = self._mapping(path, size)
        except HostMemoryError as error:
            self._warn(f"step {progress.step} is not in the memory of a host: {error}")
            return
        places = [one.place for one in local]
        digests = self._thread.submit(_digests, local)
        for place, data in zip(places, on_host(local), strict=True):
            mapped[place.offset : place.offset + place.size] = data
        arrays = {
            name: Array(shape=leaf.shape, dtype=str(leaf.dtype), digest=0)
            for name, leaf in flat.items()
        }
        metadata = self._run.metadata(progress, arrays).model_dump_json()
        content = Content(
            Stamp(self._run.attempt, progress.step), jax.process_index(), [], metadata
        )
        written = _Written(number, path, places, digests.result())
        self._saving = self._thread.submit(self._finish, self._own, written, content)

    def settle(self) -> None:
        """Waits until the last save has ended. Raises TimeoutError after COPY_TIMEOUT_S."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        try:
            self._kept = saving.result(COPY_TIMEOUT_S) or self._kept
        except FutureTimeoutError:
            raise TimeoutError(
                f"an in-memory checkpoint was not copied within {COPY_TIMEOUT_S:.0f} s"
            ) from None

    def _mapping(self, path: str, size: int) -> np.ndarray:
        if (path, size) not in self._mapped:
            self._mapped[path, size] = mapping(path, size)
        return self._mapped[path, size]

    def _finish(self, own: HostMemory, written: "_Written", content: Content) -> Stamp | None:
        """Commits a save and copies it to the neighbor. Returns its stamp; None if it failed.

        `content` has no shards yet.
        """
        began_s, step = time.perf_counter(), content.stamp.step
        shards = written.shards()
        try:
            own.commit(written.number, replace(content, shards=shards))
        except HostMemoryError as error:
            self._warn(f"step {step} is not in the memory of a host: {error}")
            return None
        alone = [s for s, one in zip(shards, written.places, strict=True) if one.is_alone]
        if self._neighbor is not None and alone:
            size = sum(shard.size for shard in alone)
            copy = replace(content, shards=alone)
            try:
                self._neighbor.store(written.path, size, self._kept, copy)
            except HostMemoryError as error:
                self._warn(f"the neighbor of a host has no copy of step {step}: {error}")
        if self._run.plan.world.on_cpu:
            self.background_s = time.perf_counter() - began_s
        return content.stamp

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._events.emit(WarningEvent(message=f"in-memory checkpoints: {message}"))


class _Written(NamedTuple):
    """A slot that is written and not committed yet."""

    number: int
    path: str
    places: Sequence[Place]
    digests: Sequence[jax.Array]
    """Digests of the shards, which the devices may still compute."""

    def shards(self) -> list[Shard]:
        """Returns the shards in the slot; waits for their digests."""
        return [
            Shard(one.name, one.index, one.offset, one.size, int(digest))
            for one, digest in zip(self.places, self.digests, strict=True)
        ]


def _digests(local: Sequence[LocalShard]) -> list[jax.Array]:
    """Returns the digests of shards, without waiting for them.

    Call it in a thread without `jax.set_mesh`: JAX would refuse arrays of one device.
    """
    return [part_digest(data, [first for first, _ in place.index]) for place, data in local]


def _neighbor(own: HostMemory | None, run: RunFacts) -> HostMemory | None:
    """Returns the memory that gets the copies of this process; None when there is none."""
    consensus.publish("memory/address", str(own.address) if own else "")
    neighbor = neighbor_of(jax.process_index(), run.plan.world)
    if neighbor == jax.process_index():
        return None
    address = consensus.published("memory/address", neighbor)
    return HostMemory(Address.parse(address), run.attempt) if address else None


def neighbor_of(process: int, world: World) -> int:
    """Returns the process that keeps the copy, on the next host, in the next slice if there is one.

    It is the process itself if there is no other host.
    """
    hosts = world.hosts_per_slice if world.slices > 1 else 1
    return (process + hosts * world.processes_per_host) % world.processes
