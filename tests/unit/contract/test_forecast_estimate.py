"""The estimated time of a step: its parts, its range, and what it reproduces."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu import LARGE
from tests.support.jobs import job_of as any_job
from tests.support.llama_jobs import CORPUS, job_of, world_of
from trainer.contract.config.job import Job
from trainer.contract.estimates.forecast import (
    FORWARD_SHARE,
    HOST,
    HOST_COPIES,
    HOST_S,
    RANGES,
    estimated,
    of_schedule,
)
from trainer.contract.estimates.roofline import bounds
from trainer.contract.planning.chips import TPUS
from trainer.contract.planning.plan import World
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import StepSchedule


def step(job: Job, world: World) -> Any:
    found = estimated(job, resolve(job, world, CORPUS))
    assert found
    return found


def schedule(**parts: float) -> StepSchedule:
    return StepSchedule(sum(parts.values()), parts, {})


@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 100), min_size=1))
def test_parts_of_a_compiled_step_add_up_to_it(parts: dict[str, float]) -> None:
    found = of_schedule(schedule(**parts), world_of("v5p-64"))
    assert found.step_s == pytest.approx(sum(found.parts.values()))
    assert found.low_s <= found.step_s <= found.high_s


def test_host_counts_only_beyond_the_devices_time() -> None:
    assert of_schedule(schedule(a=1.0), world_of("v5p-64")).parts[HOST] == 0
    assert of_schedule(schedule(a=HOST_S / 3), world_of("v5p-64")).parts[HOST] == pytest.approx(
        2 * HOST_S / 3
    )


@pytest.mark.parametrize("accelerator", ["v4-32", "v5e-256", "v5p-64", "v6e-256", "h100-64"])
@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_estimate_is_never_below_the_bound(accelerator: str, remat: str) -> None:
    job, world = job_of(256, remat), world_of(accelerator)
    best = bounds(job, resolve(job, world, CORPUS))
    assert best and best.step_s < step(job, world).step_s < 4 * best.step_s


@pytest.mark.parametrize("attention", ["splash", "reference"])
def test_recomputation_is_expected_to_cost_time(attention: str) -> None:
    def seconds(remat: str) -> float:
        job = job_of(64, remat)
        plan = resolve(job, world_of("v5p-64"), CORPUS)
        found = estimated(job, plan.model_copy(update={"attention": attention}))
        assert found
        return found.step_s

    none, dots, full = map(seconds, ("none", "dots", "full"))
    assert (none < dots) == (attention == "reference"), "`dots` keeps what the kernel returns"
    assert none <= dots < full


def test_tensor_parallelism_waits_for_its_sums() -> None:
    found = step(job_of(64, "full", fsdp=8, tensor=4), world_of("v5p-64"))
    assert found.parts["collectives over tensor"] > found.parts["collectives over fsdp"]


def test_estimate_has_the_wider_range() -> None:
    (low, high), (least, most) = RANGES["compiled schedule"], RANGES["calibrated estimate"]
    assert least < low < 1 < high < most


@pytest.mark.parametrize(
    ("accelerator", "is_validated"),
    [("v5p-64", True), ("v6e-64", True), ("v4-32", False), ("h100-8", False)],
)
def test_devices_that_no_measurement_covers_are_marked(
    accelerator: str, is_validated: bool
) -> None:
    assert step(job_of(64), world_of(accelerator)).is_validated == is_validated


def test_devices_of_unknown_speed_have_no_estimate() -> None:
    world = world_of("v5p-64").model_copy(update={"simulated": True})
    assert estimated(job_of(64), resolve(job_of(64), world, CORPUS)) is None


def test_an_a100_is_as_fast_as_the_measurement_that_set_it() -> None:
    """See RATES: sequences of 8,192, one row on each."""
    world = world_of("a100-80gb-64")
    job = job_of(world.devices, "dots")
    job = job.model_copy(update={"data": job.data.model_copy(update={"seq_len": 8192})})
    tokens_per_s = 8192 / step(job, world).step_s
    assert tokens_per_s == pytest.approx(2973, rel=0.1)


def test_an_h200_is_as_fast_as_the_benchmark_that_set_it() -> None:
    """See RATES: 1.159 s for a step, of which 0.047 s are logits of tokens that this job lacks."""
    job = any_job(
        model=LARGE, data={"seq_len": 4096, "global_batch": 16, "mask_across_documents": False}
    )
    assert step(job, world_of("h200-1")).step_s == pytest.approx(1.159 - 0.047, rel=0.05)


def test_the_copies_of_moments_hide_each_other_only() -> None:
    job, world = job_of(64, "full"), world_of("v5p-64")
    optimizer = job.optimizer.model_copy(update={"offload_moments": True})
    parts = step(job.model_copy(update={"optimizer": optimizer}), world).parts
    plan = resolve(job, world, CORPUS)
    moments = 2 * sum(array.bytes_per_device for array in plan.parameters)
    assert parts[HOST_COPIES] == pytest.approx(moments / TPUS["v5p"].pcie_bytes_per_s)


def test_copies_to_the_host_cost_only_what_work_does_not_hide() -> None:
    def waits(*names: str) -> float | None:
        job = job_of(64, "full")
        model = job.decoder.model_copy(update={"offload": names})
        parts = step(job.model_copy(update={"model": model}), world_of("v5p-64")).parts
        return parts.get(HOST_COPIES)

    assert waits() is None
    assert waits("layer_input") == 0
    # Two rows of 4,096 tokens on a device; the copies back hide behind the rest of the work.
    copied_s = 2 * 4096 * 32 * 4 * 14336 / TPUS["v5p"].pcie_bytes_per_s
    forward_s = FORWARD_SHARE * (step(job_of(64, "full"), world_of("v5p-64")).step_s)
    found = waits("mlp_hidden")
    assert found and 0.8 * (copied_s - forward_s) < found < copied_s
