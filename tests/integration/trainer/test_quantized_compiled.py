"""What TPU compilers make of products in 8 bits: which units compute them, and how fast.

uv run --group tpu_compiler pytest -m "tpu_compiler or compiles"
"""

from collections import Counter
from typing import Any

import pytest

from tests.support.jobs import corpus_of, job_of
from tests.support.worlds import slice_world
from trainer.analysis.compile_report import estimate
from trainer.contract.estimates.forecast import MATRIX_PRODUCTS
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import CompileReport, StepSchedule

LAYERS, KERNELS = 4, 7
SMALL = {"layers": LAYERS, "d_model": 2048, "heads": 16, "kv_heads": 16, "d_ff": 8192}
WIDE = {"layers": 2, "d_model": 8192, "heads": 64, "kv_heads": 8, "d_ff": 28_672}
"""Two layers of Llama 3 70B."""
CASES = {"int8 on v6e": ("v6e-4", "int8"), "fp8 on v7x": ("v7x-8", "fp8")}


def compiled(accelerator: str, precision: str | None, model: dict[str, Any]) -> CompileReport:
    world = slice_world(accelerator, 1)
    data = {"seq_len": 2048, "global_batch": 4 * world.devices}
    job = job_of(model={**model, "remat": "full", "precision": precision}, data=data)
    found = estimate(job, resolve(job, world, corpus_of(job)))
    assert found.fits, found.message
    return found


def schedule_of(report: CompileReport) -> StepSchedule:
    assert report.schedule
    return report.schedule


# Two minutes of compilation; test_quantized.py checks in CI that the products are in 8 bits.
@pytest.mark.full
@pytest.mark.tpu_compiler
def test_int8_units_compute_all_products_of_layers() -> None:
    """The forward pass, its repetition except for the last product, and two gradients."""
    found = compiled("v6e-8", "int8", SMALL)
    assert found.products and found.products["s8"] == LAYERS * (4 * KERNELS - 1)
    sent: Counter[tuple[str, str]] = Counter()
    for one in found.collectives or []:
        sent[one.kind, one.part] += one.bytes
    for part in ("attention", "mlp"):
        # Two gathers of each kernel in 8 bits, with a few scales, and a scatter in bfloat16.
        scattered = sent["reduce-scatter", part]
        assert 0 < scattered <= sent["all-gather", part] < 1.01 * scattered


@pytest.mark.compiles
@pytest.mark.parametrize(("accelerator", "precision"), CASES.values(), ids=CASES)
def test_step_of_a_large_model_is_faster_in_8_bits(accelerator: str, precision: str) -> None:
    narrow, wide = (schedule_of(compiled(accelerator, one, WIDE)) for one in (precision, None))
    assert narrow.parts[MATRIX_PRODUCTS] < 0.8 * wide.parts[MATRIX_PRODUCTS]
    assert narrow.device_s < wide.device_s
