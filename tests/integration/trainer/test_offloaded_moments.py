"""Moments in the memory of the host: the same numbers, and checkpoints that do not depend on it."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.harness import bench
from tests.support.jobs import job_of
from tests.support.sampling import sampled
from tests.support.saves import Kept, equal
from trainer.step.update import HOST

OFFLOAD = {"offload_moments": True}
MIXED = {"data": 1, "fsdp": 2, "tensor": 2}
CASES = {
    "adamw, one device": (1, {}, {}),
    "muon with an average, fsdp 4": (4, {}, {"name": "muon", "ema_decay": 0.9}),
    "lion, fsdp 2, tensor 2": (4, MIXED, {"name": "lion", "moments_dtype": "bfloat16"}),
    "adafactor, data 2, fsdp 2, tensor 2": (8, {**MIXED, "data": 2}, {"name": "adafactor"}),
}

ALWAYS = ("muon with an average, fsdp 4", "lion, fsdp 2, tensor 2")


def on_host(optimizer: Any) -> set[bool]:
    """Whether moments are in the memory of the host; counters never are."""
    moments = [leaf for leaf in jax.tree.leaves(optimizer) if leaf.ndim]
    counters = [leaf for leaf in jax.tree.leaves(optimizer) if not leaf.ndim]
    assert all(leaf.sharding.memory_kind != HOST for leaf in counters)
    return {leaf.sharding.memory_kind == HOST for leaf in moments}


@pytest.mark.parametrize(("devices", "mesh", "optimizer"), sampled(CASES, ALWAYS))
def test_losses_do_not_depend_on_where_the_moments_are(devices, mesh, optimizer):
    near, far = (
        bench(job_of(mesh=mesh, optimizer={**optimizer, **where}), devices).run(4)
        for where in ({}, OFFLOAD)
    )
    losses = ([metrics.loss for metrics in one[1]] for one in (near, far))
    np.testing.assert_allclose(*losses, rtol=1e-6)
    assert (on_host(near[0].optimizer), on_host(far[0].optimizer)) == ({False}, {True})


@pytest.mark.parametrize(("saved", "wanted"), [({}, OFFLOAD), (OFFLOAD, {})])
def test_a_checkpoint_does_not_depend_on_where_the_moments_are(
    tmp_path: Path, saved: dict[str, bool], wanted: dict[str, bool]
) -> None:
    state = Kept.of(tmp_path, devices=4, optimizer=saved).saved(1)
    kept = Kept.of(tmp_path, devices=4, attempt=2, mesh=MIXED, optimizer=wanted)
    restored = kept.restore()
    assert restored and equal(restored.state, state)
    assert on_host(restored.state.optimizer) == {bool(wanted)}
    assert all("offload_moments" in note for note in restored.notes)
