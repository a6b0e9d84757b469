"""What TPU compilers make of products in 8 bits: which units compute them, and how fast.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

import pytest

from tests.support.jobs import corpus_of, job_of
from tests.support.sampling import sampled
from tests.support.worlds import slice_world
from trainer.analysis.compile_report import estimate
from trainer.contract.estimates.forecast import MATRIX_PRODUCTS
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import CompileReport

pytestmark = pytest.mark.tpu_compiler
LAYERS, KERNELS = 2, 7
MODEL = {
    "layers": LAYERS, "d_model": 2048, "heads": 16, "kv_heads": 16, "d_ff": 8192, "remat": "full",
}  # fmt: skip
CASES = {
    "int8 on v6e": ("v6e-4", "int8", {}, "s8"),
    "fp8 on v7x": ("v7x-8", "fp8", {}, "f8"),
    "int8 on v5e, tensor 2": ("v5e-4", "int8", {"tensor": 2}, "s8"),
}


def compiled(accelerator: str, precision: str | None, mesh: dict[str, int]) -> CompileReport:
    world = slice_world(accelerator, 1)
    data = {"seq_len": 2048, "global_batch": 2 * world.devices}
    job = job_of(model={**MODEL, "precision": precision}, mesh=mesh, data=data)
    found = estimate(job, resolve(job, world, corpus_of(job)))
    assert found.fits, found.message
    return found


@pytest.mark.parametrize(
    ("accelerator", "precision", "mesh", "dtype"), sampled(CASES, ("int8 on v6e",))
)
def test_step_has_products_in_8_bits_and_is_faster(
    accelerator: str, precision: str, mesh: dict[str, int], dtype: str
) -> None:
    """The forward pass, its repetition except for the last product, and two gradients."""
    narrow, wide = (compiled(accelerator, one, mesh) for one in (precision, None))
    assert narrow.products and wide.products and narrow.schedule and wide.schedule
    count = sum(n for dtypes, n in narrow.products.items() if dtypes.startswith(dtype))
    assert count == LAYERS * (4 * KERNELS - 1)
    assert not any(dtypes.startswith(dtype) for dtypes in wide.products)
    of_products = [one.schedule.parts[MATRIX_PRODUCTS] for one in (narrow, wide) if one.schedule]
    assert of_products[0] < 0.8 * of_products[1]
    assert narrow.schedule.device_s < wide.schedule.device_s
    # Collectives send the compute dtype, as without the key, and maxima besides.
    sent = [sum(one.bytes for one in report.collectives or []) for report in (narrow, wide)]
    assert sent[0] < 1.1 * sent[1]
