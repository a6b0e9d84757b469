"""In-memory checkpoints: their interval, the neighbor, what is complete, and other meshes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.host.checkpoint_memory import CheckpointMemory
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.saves import Kept, equal
from tests.support.worlds import cpu_world, tiny_job, tpu_world
from trainer.checkpoint import memory_interval, memory_restore, memory_saver
from trainer.checkpoint.digests import digests, part_digest
from trainer.checkpoint.facts import Progress
from trainer.checkpoint.initial_state import InitialState
from trainer.checkpoint.local_shards import Bounds
from trainer.checkpoint.memory_client import HostMemory
from trainer.checkpoint.memory_interval import Interval
from trainer.checkpoint.memory_restore import Held, Sources
from trainer.contract.protocol.host_memory import Address, Content, Kind, Shard, Slot, Stamp
from trainer.contract.records.checkpoint_metadata import Array

NOWHERE = Address("127.0.0.1", 1, "")


def slot(
    step: int, *shards: Shard, kind: Kind = "own", attempt: int = 1, metadata: str = ""
) -> Slot:
    return Slot(0, kind, "", Content(Stamp(attempt, step), 0, shards, metadata))


def test_an_interval_in_steps_counts_from_the_first_step_of_the_run() -> None:
    interval = Interval(5, first_step=12)
    assert [step for step in range(13, 30) if interval.is_due(step)] == [15, 20, 25]


def test_an_automatic_interval_follows_from_the_fourth_save() -> None:
    interval = Interval("auto", first_step=100)
    assert [step for step in range(101, 112) if interval.is_due(step)] == [102, 104, 106, 108]
    interval.saved(102, began_s=10.0, ended_s=15.0, background_s=0.0)  # compiles
    interval.saved(104, began_s=17.0, ended_s=17.5, background_s=0.5)
    interval.saved(106, began_s=20.0, ended_s=20.5, background_s=0.5)
    # 0.05 s and 0.025 s in the background, and steps of 1 s.
    interval.saved(108, began_s=22.5, ended_s=22.55, background_s=0.025)
    assert [step for step in range(109, 125) if interval.is_due(step)] == [116, 124]


@pytest.mark.parametrize(
    ("save_s", "step_s", "every"),
    [(0.001, 1.0, 1), (0.01, 1.0, 1), (0.011, 1.0, 2), (1, 0.1, 1000)],
)
def test_saves_take_at_most_one_percent_of_the_time(
    save_s: float, step_s: float, every: int
) -> None:
    assert memory_interval.interval(save_s, step_s) == every


def test_the_neighbor_is_in_another_slice_if_there_is_one() -> None:
    one_slice, slices = cpu_world(4, 1), tpu_world("v4-8", (2, 2, 2), (2, 2, 1), slices=2)
    assert [memory_saver.neighbor_of(p, one_slice) for p in range(4)] == [1, 2, 3, 0]
    assert [memory_saver.neighbor_of(p, slices) for p in range(4)] == [2, 3, 0, 1]


def test_the_neighbor_is_never_another_process_of_the_same_host() -> None:
    several, alone = cpu_world(3, 2, processes_per_host=2), cpu_world(1, 2, processes_per_host=2)
    assert [memory_saver.neighbor_of(p, several) for p in range(6)] == [2, 3, 4, 5, 0, 1]
    assert [memory_saver.neighbor_of(p, alone) for p in range(2)] == [0, 1]


def test_a_checkpoint_is_complete_when_each_shard_is_in_some_slot() -> None:
    about = about_of(tiny_job(), step=5)
    arrays = {"a": Array(shape=(4, 2), dtype="float32", digest=0)}
    text = about.model_copy(update={"arrays": arrays}).model_dump_json()
    first, second = (
        Shard("a", ((0, 2), (0, 2)), 0, 16, 2**31),
        Shard("a", ((2, 4), (0, 2)), 0, 16, 2**31 + 5),
    )
    slots = [
        slot(5, first, metadata=text),
        slot(5, second, kind="copy", metadata=text),
        slot(10, first, metadata=text),
        slot(10, first, kind="copy", metadata=text),
        slot(3, first, second, attempt=2, metadata=text),
    ]
    found = memory_restore.complete(slots)
    assert [(one.stamp, one.needs_copies) for one in found] == [
        (Stamp(2, 3), False),
        (Stamp(1, 5), True),
    ]
    assert [one.metadata.arrays["a"].digest for one in found] == [5, 5]


@st.composite
def cuts(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """A dim of `size`, cut into equal parts."""
    parts = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    width = size // parts
    return [(first, first + width) for first in range(0, size, width)]


@given(st.data(), st.integers(1, 8), st.integers(1, 8), st.integers(0, 3))
def test_an_array_is_the_same_in_shards_of_any_other_sharding(
    data: st.DataObject, rows: int, columns: int, padding: int
) -> None:
    array = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
    boxes = [(a, b) for a in data.draw(cuts(rows)) for b in data.draw(cuts(columns))]
    shards = [Shard("x", box, 0, 0, 0) for box in boxes]
    sources = Sources.of([Held(NOWHERE, slot(1, *shards))])
    values = {
        piece: np.ascontiguousarray(array[piece.shard.index[0][0] : piece.shard.index[0][1],
                                          piece.shard.index[1][0] : piece.shard.index[1][1]])
        .reshape(-1).view(np.uint8)
        for piece in sources.pieces["x"].values()
    }  # fmt: skip
    padded = np.pad(array, ((0, padding), (0, 0)))
    for first, last in data.draw(cuts(rows + padding)):
        box: Bounds = ((first, last), (0, columns))
        parts = sources.parts("x", box)
        found = memory_restore._assembled(box, np.float32, parts, values)
        assert np.array_equal(found, padded[first:last])


@pytest.fixture
def memory() -> Iterator[CheckpointMemory]:
    memory = CheckpointMemory("127.0.0.1", 2**30)
    yield memory
    memory.close()


CHECKPOINT = {"every_steps": 1, "keep": 10, "in_memory_every_steps": 1}


def kept(
    run_dir: Path,
    memory: CheckpointMemory,
    attempt: int,
    *,
    offload_moments: bool = False,
    **mesh: int,
) -> Kept:
    """An attempt of a run whose host has a memory."""
    optimizer = {"offload_moments": offload_moments}
    made = Kept.of(run_dir, 4, attempt, checkpoint=CHECKPOINT, mesh=mesh, optimizer=optimizer)
    own = HostMemory(memory.address, attempt)
    return replace(made, checkpoints=replace(made.checkpoints, memory=own))


@pytest.mark.parametrize(
    ("mesh", "offload_moments"),
    [
        ({"data": 1, "fsdp": 4}, True),
        ({"data": 4, "fsdp": 1}, False),
        ({"data": 1, "fsdp": 2, "tensor": 2}, False),
    ],
)
def test_a_state_is_read_from_memory_onto_another_mesh(
    tmp_path: Path, memory: CheckpointMemory, mesh: dict[str, int], offload_moments: bool
) -> None:
    first = kept(tmp_path / "run", memory, 1, offload_moments=offload_moments, data=2, fsdp=2)
    first.saved(1)
    state, metrics = first.made.run(3)
    start = InitialState(state)
    saver = first.checkpoints.memory_saver(start, first.said.events)
    assert saver
    saver.save(Progress(3, 24, float(metrics[-1].loss), None), state)
    saver.settle()
    state = jax.device_get(state)
    second = kept(tmp_path / "run", memory, 2, offload_moments=offload_moments, **mesh)
    restored = second.restore()
    assert restored
    assert (restored.about.step, restored.source, restored.stored_step) == (3, "memory", 1)
    assert equal(restored.state, state)
    lie = jax.tree.map(lambda array: array.sharding.memory_kind, restored.state)
    assert lie == jax.tree.map(lambda one: one.memory_kind, second.made.program.shardings)
    assert restored.about.examples == 24


@given(st.data(), st.integers(1, 8), st.integers(1, 8))
@settings(max_examples=20, deadline=None)
def test_the_digest_of_an_array_is_the_sum_of_those_of_its_parts(
    data: st.DataObject, rows: int, columns: int
) -> None:
    array = jax.random.normal(jax.random.key(0), (rows, columns))
    total = sum(
        int(part_digest(array[a:b, c:d], [a, c]))
        for a, b in data.draw(cuts(rows))
        for c, d in data.draw(cuts(columns))
    )
    assert digests([array]) == [total % 2**32]


def test_a_newer_checkpoint_in_storage_is_read_instead(
    tmp_path: Path, memory: CheckpointMemory
) -> None:
    first = kept(tmp_path / "run", memory, 1, data=1, fsdp=4)
    state, _ = first.made.run(1)
    saver = first.checkpoints.memory_saver(InitialState(state), first.said.events)
    assert saver
    saver.save(Progress(1, 8, 0.0, None), state)
    saver.settle()
    first.saved(2)
    restored = kept(tmp_path / "run", memory, 2, data=1, fsdp=4).restore()
    assert restored
    assert (restored.about.step, restored.source) == (2, "storage")
