"""What crosses two slices when each is a stage, as the TPU compiler decides.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

from typing import Any

import pytest

from tests.support.llama_jobs import CORPUS, world_of
from trainer.analysis.compile_report import estimate
from trainer.contract.config.job import Job
from trainer.contract.estimates.traffic import activation_bytes
from trainer.contract.planning.planner import resolve

pytestmark = [pytest.mark.tpu_compiler, pytest.mark.full]
MICRO = 4
JOB: dict[str, Any] = {
    "name": "stages",
    "steps": 10,
    "model": {"layers": 4, "d_model": 1024, "heads": 8, "kv_heads": 8, "head_dim": 128,
              "d_ff": 4096, "remat": "full", "tied_embeddings": False},
    "data": {"source": "text", "path": "x", "seq_len": 1024, "global_batch": 64,
             "grad_accum_steps": MICRO},
    "eval": None, "sample": None, "checkpoint": None,
}  # fmt: skip


@pytest.mark.parametrize("rounds", [1, 2])
def test_only_activations_and_their_gradients_cross_slices(rounds: int) -> None:
    job = Job.model_validate({**JOB, "mesh": {"pipeline": 2, "pipeline_rounds": rounds}})
    plan = resolve(job, world_of("v5e-16", 2), CORPUS)
    report = estimate(job, plan)
    assert report.collectives
    assert report.strategies
    crossing = [one for one in report.collectives if one.link == "dcn"]
    assert {one.axis for one in crossing} == {"pipeline"}
    ticks = rounds * MICRO + 1
    passed_on = [one.bytes for one in crossing if one.count == ticks]
    assert passed_on == [ticks * activation_bytes(job, plan)] * 2, "forward and backward"
    share = report.strategies["pipeline"]
    assert 0.9 < share.sent / share.must < 1.1
    assert report.strategies["data"].sent == 0
