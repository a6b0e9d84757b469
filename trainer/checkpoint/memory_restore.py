"""Finds the newest complete in-memory checkpoint, and reads it onto this run's mesh.

A process reads from its own host what that has, and the rest from the other hosts.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from trainer.checkpoint.digests import changed
from trainer.checkpoint.local_shards import Bounds, bounds
from trainer.checkpoint.memory_client import HostMemory, HostMemoryError, read_file
from trainer.checkpoint.tree import groups
from trainer.contract.protocol.events import RestoreSource
from trainer.contract.protocol.host_memory import Address, Shard, Slot, Stamp
from trainer.contract.records.checkpoint_metadata import CheckpointMetadata
from trainer.distributed import consensus


class Held(NamedTuple):
    """A slot of one host."""

    address: Address
    slot: Slot


class MemoryCheckpoint(NamedTuple):
    """A complete checkpoint in the memory of the hosts."""

    stamp: Stamp
    metadata: CheckpointMetadata
    needs_copies: bool
    """Whether a part of it is only in a copy."""


@dataclass(frozen=True)
class InMemory:
    """A state that was read from the memory of the hosts."""

    flat: dict[str, jax.Array]
    checkpoint: MemoryCheckpoint
    source: RestoreSource


class MemoryRestorer:
    """Reads in-memory checkpoints; every process must call it, and all get the same result."""

    def __init__(
        self, own: HostMemory | None, attempt: int, limit_s: float, warn: Callable[[str], None]
    ) -> None:
        self._own, self._attempt, self._limit_s, self._warn = own, attempt, limit_s, warn
        self._local: list[Held] = []
        self._remote: list[Held] | None = None
        """The slots of the other hosts, once they are needed."""
        self._meetings = 0

    def find(self) -> list[MemoryCheckpoint]:
        """Returns the complete checkpoints, newest first."""
        self._local, self._remote = self._own_slots(), None
        consensus.publish("memory/slots", json.dumps([asdict(held.slot) for held in self._local]))
        consensus.publish("memory/holder", str(self._own.address) if self._own else "")
        text = None
        if jax.process_index() == 0:
            found = complete([held.slot for held in [*self._local, *self._others()]])
            text = json.dumps([(*one[:1], one[1].model_dump_json(), one[2]) for one in found])
        text = consensus.broadcast("memory/found", text, self._limit_s)
        return [
            MemoryCheckpoint(Stamp(*stamp), CheckpointMetadata.model_validate_json(about), copies)
            for stamp, about, copies in json.loads(text)
        ]

    def read(
        self,
        checkpoint: MemoryCheckpoint,
        like: Mapping[str, Any],
        shardings: Mapping[str, Any],
    ) -> InMemory | None:
        """Returns a checkpoint's arrays; None when no intact shards of it can be read.

        First reads the shards of each process from its own host. If they are damaged, reads those
        that others have.
        """
        for is_second in (False, True):
            flat, problem = self._read(checkpoint, like, shardings, is_second=is_second)
            if not problem:
                source = "neighbor" if is_second or checkpoint.needs_copies else "memory"
                return InMemory(flat, checkpoint, source)
            self._warn(f"step {checkpoint.stamp.step} in the memory of the hosts: {problem}")
        return None

    def _own_slots(self) -> list[Held]:
        if self._own is None:
            return []
        try:
            return [Held(self._own.address, slot) for slot in self._own.slots()]
        except HostMemoryError as error:
            self._warn(f"the memory of a host cannot be read: {error}")
            return []

    def _others(self) -> list[Held]:
        """Returns the slots of all other hosts."""
        if self._remote is None:
            self._remote = []
            for process in range(jax.process_count()):
                if process != jax.process_index():
                    self._remote += self._published(process)
        return self._remote

    def _published(self, process: int) -> list[Held]:
        slots = json.loads(consensus.published("memory/slots", process, self._limit_s))
        if not slots:
            return []
        address = Address.parse(consensus.published("memory/holder", process, self._limit_s))
        return [Held(address, Slot.from_fields(slot)) for slot in slots]

    def _read(
        self,
        checkpoint: MemoryCheckpoint,
        like: Mapping[str, Any],
        shardings: Mapping[str, Any],
        *,
        is_second: bool,
    ) -> tuple[dict[str, jax.Array], str]:
        """Returns the arrays, and the damage or what could not be read ("": nothing)."""
        self._meetings += 1
        flat, error = {}, None
        try:
            sources = self._sources(checkpoint, like, shardings, is_second=is_second)
            for names in groups(like, shardings):
                flat |= self._arrays({name: like[name] for name in names}, shardings, sources)
        except (HostMemoryError, consensus.AgreementError) as problem:
            error = problem
        try:
            consensus.agree(f"memory/read/{self._meetings}", error, (), self._limit_s)
        except consensus.AgreementError as problem:
            return {}, str(problem)
        return flat, changed(flat, checkpoint.metadata)

    def _sources(
        self,
        checkpoint: MemoryCheckpoint,
        like: Mapping[str, Any],
        shardings: Mapping[str, Any],
        *,
        is_second: bool,
    ) -> "Sources":
        """Returns where this process reads each shard; asks other hosts only if it must."""
        local = [held for held in self._local if held.slot.content.stamp == checkpoint.stamp]
        if not is_second:
            found = Sources.of(sorted(local, key=lambda held: held.slot.kind != "own"))
            if all(found.covers(name, box) for name, box in _needed(like, shardings)):
                return found
        others = [held for held in self._others() if held.slot.content.stamp == checkpoint.stamp]
        if not is_second:
            return Sources.of([*local, *others])
        own = [held for held in local if held.slot.kind == "own"]
        copies = [held for held in [*local, *others] if held.slot.kind == "copy"]
        return Sources.of([*copies, *(held for held in others if held not in copies), *own])

    def _arrays(
        self, like: Mapping[str, Any], shardings: Mapping[str, Any], sources: "Sources"
    ) -> dict[str, jax.Array]:
        """Returns arrays on this process's devices. Raises HostMemoryError."""
        wanted = list(_needed(like, shardings))
        pieces = {part for name, box in wanted for part in sources.parts(name, box)}
        data = self._fetched(pieces)
        boxes = {
            (name, box): _assembled(box, like[name].dtype, sources.parts(name, box), data)
            for name, box in wanted
        }
        return {
            name: _placed(leaf.shape, shardings[name], lambda box, name=name: boxes[name, box])
            for name, leaf in like.items()
        }

    def _fetched(self, pieces: Iterable["Piece"]) -> dict["Piece", np.ndarray]:
        """Reads whole shards, with one request for each slot. Raises HostMemoryError."""
        by_slot: dict[tuple[Address, int], list[Piece]] = defaultdict(list)
        for piece in pieces:
            by_slot[piece.address, piece.slot.number].append(piece)
        data: dict[Piece, np.ndarray] = {}
        for (address, _), some in by_slot.items():
            slot, parts = some[0].slot, [(one.shard.offset, one.shard.size) for one in some]
            if self._own is not None and address == self._own.address:
                found = read_file(slot.path, parts)
            else:
                found = HostMemory(address, self._attempt).read(slot, parts)
            data.update(zip(some, found, strict=True))
        return data


@dataclass(frozen=True, eq=False)
class Piece:
    """A shard in a slot; compared by identity."""

    address: Address
    slot: Slot
    shard: Shard


@dataclass(frozen=True)
class Sources:
    """Where the shards of each array are read."""

    pieces: Mapping[str, Mapping[Bounds, Piece]]
    """Array -> shard -> the slot that is read."""

    @classmethod
    def of(cls, held: Sequence[Held]) -> "Sources":
        """Returns the sources of all shards; the first slot that has a shard is read."""
        pieces: dict[str, dict[Bounds, Piece]] = defaultdict(dict)
        for address, slot in held:
            for shard in slot.content.shards:
                pieces[shard.name].setdefault(shard.index, Piece(address, slot, shard))
        return cls(pieces)

    def parts(self, name: str, box: Bounds) -> list[Piece]:
        """Returns the shards that overlap with a part of an array."""
        shards = self.pieces.get(name, {})
        return [piece for index, piece in shards.items() if _overlap(index, box) is not None]

    def covers(self, name: str, box: Bounds) -> bool:
        """Returns whether the shards hold all of a part of an array."""
        return box in self.pieces.get(name, {})


def complete(slots: Sequence[Slot]) -> list[MemoryCheckpoint]:
    """Returns the checkpoints of which all shards are in some slot, newest first."""
    by_stamp: dict[Stamp, list[Slot]] = defaultdict(list)
    for slot in slots:
        by_stamp[slot.content.stamp].append(slot)
    found = []
    for stamp in sorted(by_stamp, reverse=True):
        some = by_stamp[stamp]
        metadata = CheckpointMetadata.model_validate_json(some[0].content.metadata)
        if _is_whole(metadata, some):
            own = [slot for slot in some if slot.kind == "own"]
            whole = _with_digests(metadata, some)
            found.append(MemoryCheckpoint(stamp, whole, not _is_whole(metadata, own)))
    return found


def _with_digests(metadata: CheckpointMetadata, slots: Iterable[Slot]) -> CheckpointMetadata:
    """Returns the metadata with the digests of the arrays, from those of their shards."""
    shards = {
        (shard.name, shard.index): shard.digest for slot in slots for shard in slot.content.shards
    }
    sums: dict[str, int] = defaultdict(int)
    for (name, _), digest in shards.items():
        sums[name] += digest
    arrays = {
        name: array.model_copy(update={"digest": sums[name] % 2**32})
        for name, array in metadata.arrays.items()
    }
    return metadata.model_copy(update={"arrays": arrays})


def _is_whole(metadata: CheckpointMetadata, slots: Iterable[Slot]) -> bool:
    """Returns whether the shards in the slots make up every array.

    Shards of one array are those of one sharding: they are equal or do not overlap.
    """
    shards: dict[str, set[Bounds]] = defaultdict(set)
    for slot in slots:
        for shard in slot.content.shards:
            shards[shard.name].add(shard.index)
    return all(
        sum(_volume(index) for index in shards[name]) == math.prod(array.shape)
        for name, array in metadata.arrays.items()
    )


def _needed(
    like: Mapping[str, Any], shardings: Mapping[str, Any]
) -> Iterator[tuple[str, Bounds]]:  # fmt: skip
    """Yields each part of an array that a device of this process holds, once."""
    for name, leaf in like.items():
        indices = shardings[name].addressable_devices_indices_map(leaf.shape).values()
        for box in dict.fromkeys(bounds(index, leaf.shape) for index in indices):
            yield name, box


def _overlap(one: Bounds, other: Bounds) -> Bounds | None:
    """Returns the common part of two parts of an array; None when there is none."""
    common = tuple(
        (max(a, b), min(c, d)) for (a, c), (b, d) in zip(one, other, strict=True)
    )  # fmt: skip
    return common if all(start < stop for start, stop in common) else None


def _volume(box: Bounds) -> int:
    return math.prod(stop - start for start, stop in box)


def _assembled(
    box: Bounds, dtype: Any, parts: Sequence[Piece], data: Mapping[Piece, np.ndarray]
) -> np.ndarray:
    """Returns a part of an array. Where no shard has it, as in a vocabulary's padding, it is 0."""
    for piece in parts:
        if piece.shard.index == box:
            return data[piece].view(dtype).reshape(_shape(box))
    array = np.zeros(_shape(box), dtype)
    for piece in parts:
        index = piece.shard.index
        common = _overlap(index, box)
        assert common is not None
        values = data[piece].view(dtype).reshape(_shape(index))
        array[_slices(common, box)] = values[_slices(common, index)]
    return array


def _shape(box: Bounds) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _slices(part: Bounds, box: Bounds) -> tuple[slice, ...]:
    """Returns the positions of a part of an array in a larger part of it."""
    return tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(part, box, strict=True))


def _placed(
    shape: tuple[int, ...], sharding: Any, values: Callable[[Bounds], np.ndarray]
) -> jax.Array:
    """Returns a global array with this process's parts of it on its devices."""
    indices = sharding.addressable_devices_indices_map(shape)
    # A step donates the arrays, so they must not share memory with numpy.
    parts = [
        jax.device_put(
            values(bounds(index, shape)),
            SingleDeviceSharding(device, memory_kind=sharding.memory_kind),
            may_alias=False,
        )
        for device, index in indices.items()
    ]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)
