"""Stages whose passes take turns: what the plan, its estimates and the search know of them."""

from typing import Any

import pytest

from tests.support.llama_jobs import job_of, world_of
from tests.support.worlds import CORPUS, V4_32, tiny_job
from trainer.contract.config.job import Job
from trainer.contract.estimates.forecast import estimated
from trainer.contract.estimates.memory import footprint
from trainer.contract.estimates.search import alternatives
from trainer.contract.estimates.traffic import traffic
from trainer.contract.planning import pipeline
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import PlanError, resolve

ROWS = 64
STREAM = ROWS // 32 * 4096 * 4096 * 2
"""Bytes of a micro-batch's activations on a device."""
ALTERNATING = {"pipeline": 2, "pipeline_schedule": "1f1b"}


def plan_of(micro: int, schedule: str = "1f1b") -> tuple[Job, Plan]:
    job = job_of(ROWS * micro, "full", pipeline=2)
    mesh = job.mesh.model_copy(update={"pipeline_schedule": schedule})
    data = job.data.model_copy(update={"grad_accum_steps": micro})
    job = job.model_copy(update={"mesh": mesh, "data": data})
    return job, resolve(job, world_of("v5p-64", 2), CORPUS)


@pytest.mark.parametrize(
    ("stages", "micro", "kept"), [(2, 1, 2), (2, 2, 3), (2, 16, 3), (4, 64, 7)]
)
def test_stages_keep_few_ticks_of_any_number(stages: int, micro: int, kept: int) -> None:
    assert pipeline.kept_ticks(stages, micro) == kept


def test_the_memory_of_activations_does_not_grow_with_micro_batches() -> None:
    few, many = (footprint(*plan_of(micro)) for micro in (4, 64))
    assert few.kept == many.kept
    assert few.kept == (16 * (3 + 1) + 4) * STREAM
    assert many.kept < footprint(*plan_of(64, "gpipe")).kept / 15


def test_gradients_of_micro_batches_are_accumulated() -> None:
    assert footprint(*plan_of(4)).gradients == 2 * footprint(*plan_of(4, "gpipe")).gradients


def test_the_bubble_is_that_of_gpipe() -> None:
    forecasts = [estimated(*plan_of(16, schedule)) for schedule in ("1f1b", "gpipe")]
    assert all(forecasts)
    products = [forecast.parts["matrix products"] for forecast in forecasts if forecast]
    assert products[0] == products[1]


def test_embeddings_are_summed_in_every_tick() -> None:
    (crossing,) = [one for one in traffic(*plan_of(16)) if one.link == "dcn"]
    assert crossing.axis == "pipeline"
    passed_on, sums = 2 * 17, 2 * (16 + 2) + 2 * 16
    assert crossing.bytes == 4 * (passed_on + sums) * STREAM


def test_weights_outside_of_layers_are_gathered_for_each_micro_batch() -> None:
    plan = plan_of(16)[1]
    uses = {array.name: pipeline.uses(array, plan) for array in plan.parameters}
    assert uses["embedding.table"] == 16
    assert uses["layers.mlp.up.kernel"] == 17


def test_the_search_tries_passes_in_turn() -> None:
    found = alternatives(*plan_of(16, "gpipe"))
    alternating = [one for one in found if one.plan.pipeline_schedule == "1f1b"]
    assert all(one.plan.pipeline_rounds == 1 for one in alternating)
    assert {one.job.decoder.remat for one in alternating} == {"dots", "attention", "full"}
    assert any(one.changes == {"mesh.pipeline_schedule": "1f1b"} for one in alternating)


@pytest.mark.parametrize(
    ("key", "mesh", "model", "message"),
    [
        (
            "mesh.pipeline_schedule",
            {"pipeline": 1},
            {},
            "found 1f1b, but the layers are on one stage. Set mesh.pipeline, or remove this key",
        ),
        (
            "mesh.pipeline_schedule",
            {"pipeline_rounds": 2},
            {},
            "found 1f1b with mesh.pipeline_rounds 2, and 1f1b has one round. Remove one of them",
        ),
        (
            "model.remat",
            {},
            {"remat": "none"},
            "with mesh.pipeline_schedule 1f1b, stages would keep weights of several ticks, found "
            "none. Set it to dots or attention or full",
        ),
    ],
)
def test_what_passes_in_turn_exclude_is_refused(
    key: str, mesh: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    sections = {
        "mesh": {**ALTERNATING, **mesh},
        "model": {"preset": "tiny", "layers": 4, "remat": "dots", **model},
        "data": {"source": "stdlib", "seq_len": 64, "global_batch": 32, "grad_accum_steps": 2},
    }
    with pytest.raises(PlanError) as caught:
        resolve(tiny_job(**sections), V4_32, CORPUS)
    assert dict(caught.value.problems) == {key: message}
