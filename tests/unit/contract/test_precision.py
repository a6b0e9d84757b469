"""Products in 8 bits, as the plan counts them and warns of them."""

import pytest

from tests.support.llama_jobs import CORPUS, found, job_of, world_of
from tests.support.worlds import V4_32, tiny_job
from trainer.contract.config.job import Job
from trainer.contract.config.model import Precision
from trainer.contract.estimates.forecast import MATRIX_PRODUCTS, estimated
from trainer.contract.estimates.traffic import moved_bytes
from trainer.contract.planning import accelerators
from trainer.contract.planning.planner import PlanError, resolve

KERNELS = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
DOWN = 32 * 4096 * 14336


def job_in(precision: Precision | None, remat: str = "none", **mesh: int) -> Job:
    job = job_of(256, remat, **mesh)
    return job.model_copy(update={"model": job.model.model_copy(update={"precision": precision})})


@pytest.mark.parametrize(
    ("accelerator", "precision", "faster"),
    [
        ("v4-32", "int8", True),
        ("v7x-16", "int8", True),
        ("v6e-256", "fp8", True),
        ("a100-8", "fp8", True),
        ("cpu", "int8", True),
        ("v5e-256", "int8", False),
        ("v6e-256", "int8", False),
        ("v7x-16", "fp8", False),
        ("h200-8", "fp8", False),
    ],
)
def test_plan_warns_of_chips_without_units_for_the_format(
    accelerator: str, precision: Precision, faster: bool
) -> None:
    plan = resolve(job_in(precision), world_of(accelerator), CORPUS)
    warnings = [one for one in plan.warnings if "has no units for" in one]
    assert plan.precision == precision
    assert len(warnings) == faster
    for one in warnings:
        assert one.startswith(f"{accelerator.split('-')[0]} has no units for {precision}")
        assert ("v6e" if precision == "int8" else "v7x") in one.partition("Units: ")[2]


def test_without_the_key_no_chip_is_warned_of() -> None:
    assert resolve(tiny_job(), V4_32, CORPUS).warnings == ()


@pytest.mark.parametrize(("factor", "count"), [(None, 1), (1.25, 0)])
def test_experts_need_a_capacity_for_8_bits(factor: float | None, count: int) -> None:
    model = {"preset": "tiny", "precision": "int8", "moe": {"count": 4, "capacity_factor": factor}}
    problems = []
    try:
        resolve(tiny_job(model=model), V4_32, CORPUS)
    except PlanError as error:
        problems = error.problems
    assert [key for key, _ in problems] == ["model.precision"] * count
    for _, message in problems:
        assert message.endswith("Set model.moe.capacity_factor, or remove this key")


def test_a_device_of_two_to_a_chip_has_half_of_its_peak() -> None:
    chip = accelerators.parse("v7x-16")
    assert chip.peak_flops("fp8") == 2307e12
    assert chip.peak_flops("int8") == chip.peak_flops(None) == 2307e12 / 2


@pytest.mark.parametrize(
    ("remat", "quantized"),
    [("none", 6 * KERNELS), ("dots", 6 * KERNELS), ("full", 8 * KERNELS - 2 * DOWN)],
)
def test_bound_counts_products_of_layers_at_the_peak_of_8_bits(remat: str, quantized: int) -> None:
    world, tokens = world_of("v5p-64"), 256 * 4096
    wide, narrow = (found(job_in(precision, remat), world) for precision in (None, "int8"))
    assert narrow.model_flops == wide.model_flops
    saved = (wide.compute_s - narrow.compute_s) * 32 * 459e12
    assert saved == pytest.approx(tokens * quantized / 2)


def test_bound_of_compute_is_the_same_where_8_bits_are_not_faster() -> None:
    world = world_of("v6e-256")
    assert found(job_in("fp8"), world).compute_s == found(job_in(None), world).compute_s


def test_kernels_are_gathered_in_8_bits_but_gradients_scattered_in_16() -> None:
    world = world_of("v6e-256")
    wide, narrow = (resolve(job_in(one), world, CORPUS) for one in (None, "int8"))
    for array in narrow.parameters:
        is_narrow = array.name.endswith(".kernel") and array.name.startswith("layers.")
        relative = (1 + 1 + 2) / (3 * 2) if is_narrow else 1
        assert moved_bytes(array, narrow) == relative * moved_bytes(array, wide)


@pytest.mark.parametrize("mesh", [{}, {"pipeline": 2}])
def test_estimate_is_faster_in_8_bits_and_not_below_the_bound(mesh: dict[str, int]) -> None:
    world = world_of("v6e-256")
    wide, narrow = (
        estimated(job_in(precision, "full", **mesh), plan)
        for precision in (None, "int8")
        for plan in [resolve(job_in(precision, "full", **mesh), world, CORPUS)]
    )
    assert wide and narrow
    assert found(job_in("int8", "full", **mesh), world).step_s < narrow.step_s < wide.step_s
    assert narrow.parts[MATRIX_PRODUCTS] < 0.7 * wide.parts[MATRIX_PRODUCTS]
