"""The estimate of a step's memory against what the TPU compiler wants.

uv run --group tpu_compiler pytest -m compiles

Most jobs are too large for their devices: that the compiler says within seconds. Two fit, since the
compiler would make theirs smaller in ways of its own where they did not.
"""

from typing import Any

import pytest

from tests.support.llama_jobs import CORPUS, world_of
from trainer.analysis.compile_report import estimate
from trainer.contract.config.job import Job
from trainer.contract.estimates.memory import footprint
from trainer.contract.planning.planner import resolve

pytestmark = pytest.mark.compiles
CASES = [
    ("v5e-1", "none", {"global_batch": 16}, {}),
    ("v5e-1", "none", {"global_batch": 2, "seq_len": 4096}, {}),
    ("v5e-1", "dots", {"global_batch": 96, "grad_accum_steps": 2}, {}),
    ("v5e-1", "full", {"global_batch": 256}, {}),
    ("v5e-1", "full", {"global_batch": 32, "seq_len": 4096}, {}),
    ("v5e-16", "none", {"global_batch": 256}, {}),
    ("v5e-16", "dots", {"global_batch": 1536}, {}),
    ("v5e-16", "dots", {"global_batch": 1024}, {"tensor": 4}),
    ("v5e-16", "full", {"global_batch": 1024}, {"tensor": 4}),
]


def job_of(remat: str, data: dict[str, int], mesh: dict[str, int]) -> Job:
    sizes = {"layers": 8, "d_model": 1024, "heads": 8, "kv_heads": 4, "d_ff": 4096}
    sections: dict[str, Any] = {
        "model": {**sizes, "remat": remat},
        "data": {"source": "text", "path": "x", "seq_len": 1024, **data},
        "mesh": mesh,
    }
    return Job.model_validate({"name": "job", "steps": 10, **sections})


@pytest.mark.parametrize(("cluster", "remat", "data", "mesh"), CASES)
def test_the_estimate_is_of_the_right_size(
    cluster: str, remat: str, data: dict[str, int], mesh: dict[str, int]
) -> None:
    job = job_of(remat, data, mesh)
    plan = resolve(job, world_of(cluster), CORPUS)
    needed, estimated = estimate(job, plan).hbm_needed_bytes, footprint(job, plan)
    assert needed is not None
    assert estimated.certain <= needed
    assert estimated.total == pytest.approx(needed, rel=0.25)
