"""What TPU compilers make of products in 8 bits: which units compute them, and how fast.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

import pytest

from tests.support.jobs import corpus_of, job_of
from tests.support.sampling import sampled
from tests.support.worlds import slice_world
from trainer.analysis.compile_report import estimate
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import CompileReport

pytestmark = pytest.mark.tpu_compiler
MODEL = {"layers": 4, "d_model": 2048, "heads": 16, "kv_heads": 16, "d_ff": 8192, "remat": "full"}


def compiled(accelerator: str, precision: str | None) -> CompileReport:
    world = slice_world(accelerator, 1)
    data = {"seq_len": 2048, "global_batch": 4 * world.devices}
    job = job_of(model={**MODEL, "precision": precision}, data=data)
    found = estimate(job, resolve(job, world, corpus_of(job)))
    assert found.fits, found.message
    return found
