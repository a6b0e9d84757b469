"""What crosses two slices when each is a stage, as the TPU compiler decides.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

from functools import cache
from typing import Any

import pytest

from tests.support.llama_jobs import CORPUS, world_of
from trainer.analysis.compile_report import estimate
from trainer.contract.config.job import Job
from trainer.contract.estimates.traffic import activation_bytes
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import CompileReport

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.full]
MICRO = 4
ROWS = 16
JOB: dict[str, Any] = {
    "name": "stages",
    "steps": 10,
    "model": {"layers": 4, "d_model": 1024, "heads": 8, "kv_heads": 8, "head_dim": 128,
              "d_ff": 4096, "remat": "full", "tied_embeddings": False},
    "eval": None, "sample": None, "checkpoint": None,
}  # fmt: skip
ORDERS = {
    "gpipe": {},
    "2 rounds": {"pipeline_rounds": 2},
    "1f1b": {"pipeline_schedule": "1f1b"},
}


@cache
def compiled(order: str, micro: int = MICRO) -> tuple[Job, Plan, CompileReport]:
    data = {
        "source": "text", "path": "x", "seq_len": 1024, "global_batch": ROWS * micro,
        "grad_accum_steps": micro,
    }  # fmt: skip
    job = Job.model_validate({**JOB, "data": data, "mesh": {"pipeline": 2, **ORDERS[order]}})
    plan = resolve(job, world_of("v5e-16", 2), CORPUS)
    return job, plan, estimate(job, plan)


@pytest.mark.parametrize("order", ORDERS)
def test_only_activations_and_their_gradients_cross_slices(order: str) -> None:
    job, plan, report = compiled(order)
    assert report.collectives
    assert report.strategies
    crossing = [one for one in report.collectives if one.link == "dcn"]
    assert {one.axis for one in crossing} == {"pipeline"}
    passed_on = [one for one in crossing if one.kind == "collective-permute"]
    both_ways = 2 * (plan.pipeline_rounds * MICRO + 1)
    assert sum(one.count for one in passed_on) == both_ways
    assert sum(one.bytes for one in passed_on) == both_ways * activation_bytes(job, plan)
    share = report.strategies["pipeline"]
    assert share.must <= share.sent < 1.01 * share.must
    assert report.strategies["data"].sent == 0


def test_micro_batches_need_no_memory_where_passes_alternate() -> None:
    few, many = (compiled("1f1b", micro)[2].memory["temporaries"] for micro in (MICRO, 16))
    assert many == pytest.approx(few, rel=0.02)
