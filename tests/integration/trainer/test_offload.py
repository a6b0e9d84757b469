"""Activations in the memory of the host, as the TPU compiler places and moves them.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

from typing import Any, get_args

import pytest

from tests.support.jobs import corpus_of, job_of
from tests.support.worlds import slice_world
from trainer.analysis.compile_report import estimate
from trainer.analysis.forecast.costs import FROM_HOST, TO_HOST
from trainer.contract.config.model import Offloaded
from trainer.contract.estimates.activations import offloaded_bytes
from trainer.contract.estimates.forecast import HOST_COPIES
from trainer.contract.estimates.memory import footprint
from trainer.contract.planning.chips import TPUS
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import CompileReport

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.full]  # two compilations of a minute
MODEL = {"layers": 32, "d_model": 256, "heads": 2, "kv_heads": 2, "d_ff": 512, "remat": "dots"}


def compiled(**changes: Any) -> tuple[CompileReport, int, int]:
    """Returns the compiler's report, and by estimate the bytes kept and offloaded on a device."""
    world = slice_world("v6e-8", 1)
    data = {"seq_len": 512, "global_batch": 4 * world.devices}
    job = job_of(model={**MODEL, **changes}, data=data)
    plan: Plan = resolve(job, world, corpus_of(job))
    kept = footprint(job, plan).kept
    return estimate(job, plan), kept, offloaded_bytes(job, plan)


def test_offloaded_activations_leave_hbm_and_are_copied_beside_the_core() -> None:
    near, kept, nothing = compiled()
    far, left, moved = compiled(offload=[*get_args(Offloaded)])
    assert nothing == near.host_bytes == 0
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
