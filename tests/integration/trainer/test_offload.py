"""Activations and moments in the memory of the host, as the TPU compiler places and moves them.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

from typing import Any, get_args

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.jobs import corpus_of, job_of
from tests.support.worlds import slice_world
from trainer.analysis import topology
from trainer.analysis.compile_report import estimate
from trainer.analysis.forecast.costs import FROM_HOST, TO_HOST
from trainer.checkpoint import digests
from trainer.contract.config.job import Job
from trainer.contract.config.model import Offloaded
from trainer.contract.estimates.activations import offloaded_bytes
from trainer.contract.estimates.forecast import HOST_COPIES
from trainer.contract.estimates.memory import footprint
from trainer.contract.planning import optimizer_state
from trainer.contract.planning.chips import TPUS
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import CompileReport
from trainer.step.update import HOST

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.full]  # three compilations of a minute
MODEL = {"layers": 32, "d_model": 256, "heads": 2, "kv_heads": 2, "d_ff": 512, "remat": "dots"}


def planned(*, offload_moments: bool = False, **changes: Any) -> tuple[Job, Plan]:
    """Returns a job with changes of its model, and its plan."""
    world = slice_world("v6e-8", 1)
    data = {"seq_len": 512, "global_batch": 4 * world.devices}
    optimizer = {"offload_moments": offload_moments}
    job = job_of(model={**MODEL, **changes}, data=data, optimizer=optimizer)
    return job, resolve(job, world, corpus_of(job))


@pytest.fixture(scope="module")
def near() -> CompileReport:
    """The compiler's report on a step that offloads nothing."""
    return estimate(*planned())


def test_offloaded_moments_leave_hbm_and_are_copied_both_ways_at_a_time(
    near: CompileReport,
) -> None:
    job, plan = planned(offload_moments=True)
    far, moved = estimate(job, plan), optimizer_state.offloaded_bytes(job.optimizer, plan)
    assert moved == far.host_bytes == near.memory["optimizer"]
    assert near.hbm_needed_bytes and far.hbm_needed_bytes
    assert near.hbm_needed_bytes - far.hbm_needed_bytes == pytest.approx(moved, rel=0.15)
    assert far.schedule
    one_way_s = moved / TPUS["v6e"].pcie_bytes_per_s
    for direction in (TO_HOST, FROM_HOST):
        assert far.schedule.busy[direction] == pytest.approx(one_way_s, rel=0.01)
    assert far.schedule.parts[HOST_COPIES] < 1.5 * one_way_s


@pytest.mark.parametrize("name", ["digest", "row_digests", "digests"])
def test_digests_of_arrays_on_the_host_are_computed_on_the_devices(name: str) -> None:
    mesh = Mesh(np.array(topology.devices(slice_world("v6e-8", 1))), ("fsdp",))
    sharding = NamedSharding(mesh, PartitionSpec(None, "fsdp"), memory_kind=HOST)
    array = jax.ShapeDtypeStruct((16, 1024), "float32", sharding=sharding)
    is_whole = name == "digests"
    function = digests._of_shards(sharding) if is_whole else jax.jit(getattr(digests, name))
    found = function.lower(array).compile().memory_analysis()
    assert found
    assert found.host_argument_size_in_bytes == 4 * 16 * 1024 / 8
    assert found.argument_size_in_bytes == 0


def test_offloaded_activations_leave_hbm_and_are_copied_beside_the_core(
    near: CompileReport,
) -> None:
    kept = footprint(*planned()).kept
    job, plan = planned(offload=[*get_args(Offloaded)])
    far, left, moved = estimate(job, plan), footprint(job, plan).kept, offloaded_bytes(job, plan)
    assert near.host_bytes == 0
    assert kept - left == moved == far.host_bytes
    assert near.hbm_needed_bytes and far.hbm_needed_bytes
    # The activations of a layer or two are on the way at any time.
    assert near.hbm_needed_bytes - far.hbm_needed_bytes == pytest.approx(moved, rel=0.15)
    assert near.schedule and far.schedule
    one_way_s = moved / TPUS["v6e"].pcie_bytes_per_s
    for direction in (TO_HOST, FROM_HOST):
        assert direction not in near.schedule.busy
        assert far.schedule.busy[direction] == pytest.approx(one_way_s, rel=0.01)
    # A part of the copies is hidden, although the link is the bottleneck of so small a step.
    assert far.schedule.parts[HOST_COPIES] < 0.8 * 2 * one_way_s
