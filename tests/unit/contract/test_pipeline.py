"""The stages of a pipeline: their schedule, their place, and what they cost."""

from typing import Any

import pytest

from tests.support.llama_jobs import job_of, world_of
from tests.support.worlds import CORPUS, TWO_V5E_16, V4_32, cpu_world, mesh_of, tiny_job
from trainer.analysis.parallelism import shares
from trainer.contract.config.job import Job
from trainer.contract.estimates.forecast import estimated
from trainer.contract.estimates.memory import footprint
from trainer.contract.estimates.roofline import bounds
from trainer.contract.estimates.search import alternatives
from trainer.contract.estimates.traffic import traffic
from trainer.contract.planning import pipeline
from trainer.contract.planning.mesh_layout import device_order
from trainer.contract.planning.plan import Plan, World
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.protocol.reports import Collective

LLAMA_ROWS = 64


def problems_of(world: World = V4_32, **sections: object) -> dict[str, str]:
    with pytest.raises(PlanError) as caught:
        resolve(tiny_job(**sections), world, CORPUS)
    return dict(caught.value.problems)


def plan_of(
    micro: int = 8, stages: int = 2, slices: int = 2, remat: str = "none", **mesh: int
) -> tuple[Job, Plan]:
    job = job_of(LLAMA_ROWS * micro, remat, pipeline=stages, **mesh)
    data = job.data.model_copy(update={"grad_accum_steps": micro})
    job = job.model_copy(update={"data": data})
    return job, resolve(job, world_of("v5p-64", slices), CORPUS)


@pytest.mark.parametrize(
    ("stages", "micro", "rounds", "idle"),
    [
        (1, 4, 1, 0), (2, 8, 1, 1 / 9), (4, 4, 1, 3 / 7), (4, 16, 1, 3 / 19),
        (2, 8, 2, 1 / 17), (4, 4, 2, 3 / 11), (4, 16, 5, 3 / 83),
    ],
)  # fmt: skip
def test_a_stage_is_idle_while_the_pipeline_fills_and_drains(
    stages: int, micro: int, rounds: int, idle: float
) -> None:
    assert pipeline.bubble(stages, micro, rounds) == pytest.approx(idle)


def test_one_micro_batch_passes_through_all_stages_in_each_round() -> None:
    assert pipeline.ticks(stages=4, micro_batches=1, rounds=3) == 12


def test_stages_take_the_slices_before_replicas_do() -> None:
    data = {"source": "stdlib", "seq_len": 64, "global_batch": 32}
    plan = resolve(tiny_job(mesh={"pipeline": 2}, data=data), TWO_V5E_16, CORPUS)
    assert plan.mesh == mesh_of(pipeline=2, fsdp=16)
    assert set(plan.device_order[:16]) == set(range(16)), "the first stage is the first slice"
    assert plan.device_order[16:] == tuple(16 + device for device in plan.device_order[:16])


def test_slices_beyond_the_stages_are_for_replicas() -> None:
    world = TWO_V5E_16.model_copy(update={"slices": 4})
    order = device_order(world, mesh_of(pipeline=2, data=2, fsdp=16))
    assert [order[start] // 16 for start in range(0, 64, 16)] == [0, 1, 2, 3]


def test_more_stages_than_slices_split_each_slice() -> None:
    order = device_order(TWO_V5E_16, mesh_of(pipeline=4, fsdp=8))
    assert sorted(order) == list(range(32))
    assert [order[start] // 16 for start in range(0, 32, 8)] == [0, 0, 1, 1]


def test_all_stages_read_the_same_rows() -> None:
    plan = resolve(tiny_job(mesh={"pipeline": 2}), cpu_world(4, 2), CORPUS)
    assert plan.batch.block_of_process == (0, 1, 0, 1)
    assert plan.batch.rows_per_process == 8


def test_layers_and_the_vocabulary_are_split_over_stages() -> None:
    plan = resolve(tiny_job(mesh={"pipeline": 2, "tensor": 2}), V4_32, CORPUS)
    specs = {array.name: array.spec for array in plan.parameters}
    assert specs["embedding.table"] == ("pipeline+tensor", "fsdp")
    assert specs["layers.mlp.up.kernel"] == ("pipeline", "fsdp", "tensor")
    assert specs["final_norm.scale"] == (None,)


def test_the_vocabulary_is_padded_for_all_stages() -> None:
    job = tiny_job(
        model={"preset": "tiny", "layers": 6, "heads": 6, "d_model": 96},
        mesh={"pipeline": 6, "tensor": 2}, data={**tiny_job().data.model_dump(), "global_batch": 1},
    )  # fmt: skip
    assert resolve(job, cpu_world(6, 2), CORPUS).padded_vocab == 384


def test_layers_that_do_not_divide_name_the_sizes_that_do() -> None:
    model = {"preset": "tiny", "layers": 6}
    message = problems_of(mesh={"pipeline": 4}, model=model)["mesh.pipeline"]
    assert message == "6 layers are not divisible by 4 stages. Valid sizes: 1, 2, 3, 6"


def test_a_stage_has_whole_groups_of_layers() -> None:
    model = {"preset": "tiny", "layers": 12, "sliding_window": 8, "global_every": 6}
    message = problems_of(mesh={"pipeline": 4}, model=model)["mesh.pipeline"]
    assert message == (
        "12 layers are not divisible by 4 stages in whole groups of 6 (model.global_every). "
        "Valid sizes: 1, 2"
    )


def test_layers_that_are_no_whole_groups_have_no_stages() -> None:
    model = {"preset": "tiny", "layers": 8, "sliding_window": 8, "global_every": 6}
    message = problems_of(mesh={"pipeline": 2}, model=model)["mesh.pipeline"]
    assert message.endswith("in whole groups of 6 (model.global_every). Valid sizes: 1")


def test_a_custom_model_has_no_stages() -> None:
    message = problems_of(mesh={"pipeline": 2}, model={"module": "a:b"})["mesh.pipeline"]
    assert message == "found 2, but a custom model (model.module) has no stages. Remove this key"


def test_activations_of_stages_stay_on_the_devices() -> None:
    model = {"preset": "tiny", "layers": 4, "remat": "dots", "offload": ["layer_input"]}
    assert problems_of(mesh={"pipeline": 2}, model=model)["model.offload"] == (
        "with mesh.pipeline 2, activations stay on the devices: XLA cannot compile their copies to "
        "the host's memory. Remove one of the two"
    )


def test_a_batch_that_does_not_divide_into_micro_batches_is_refused() -> None:
    data = {"source": "stdlib", "seq_len": 64, "global_batch": 16, "grad_accum_steps": 3}
    message = problems_of(mesh={"pipeline": 2}, data=data)["data.global_batch"]
    assert message.endswith("x 3 micro-batches = 24. The nearest valid value: 24")


ROUNDS: dict[str, Any] = {
    "mesh": {"pipeline": 2, "pipeline_rounds": 2},
    "model": {"preset": "tiny", "layers": 4, "remat": "dots"},
    "data": {"source": "stdlib", "seq_len": 64, "global_batch": 32, "grad_accum_steps": 2},
}


def test_a_stage_has_a_part_of_each_round() -> None:
    plan = resolve(tiny_job(**ROUNDS), V4_32, CORPUS)
    (kernel,) = [one for one in plan.parameters if one.name == "layers.mlp.up.kernel"]
    assert kernel.shape[:2] == (2, 2)
    assert kernel.axes[:2] == ("round", "layer")
    assert kernel.spec == (None, "pipeline", "fsdp", None)
    (table,) = [one for one in plan.parameters if one.name == "embedding.table"]
    assert len(table.shape) == 2


@pytest.mark.parametrize(
    ("key", "changes", "message"),
    [
        (
            "mesh.pipeline_rounds",
            {"mesh": {"pipeline": 1}},
            "found 2, but the layers are on one stage. Set mesh.pipeline, or remove this key",
        ),
        (
            "mesh.pipeline_rounds",
            {"mesh": {"pipeline_rounds": 3}},
            "the 2 layers of a stage are not divisible by 3 rounds. Valid values: 1, 2",
        ),
        (
            "data.grad_accum_steps",
            {"mesh": {"pipeline": 4}, "model": {"layers": 8}},
            "with mesh.pipeline_rounds 2, micro-batches pass through 4 stages in groups of 4, "
            "found 2. Set it to a multiple of 4, such as 4",
        ),
        (
            "model.remat",
            {"model": {"remat": "none"}},
            "with mesh.pipeline_rounds 2, the backward pass would keep weights of every tick, "
            "found none. Set it to dots or attention or full",
        ),
    ],
)
def test_rounds_that_do_not_fit_are_refused(
    key: str, changes: dict[str, Any], message: str
) -> None:
    sections = {**ROUNDS, **{name: {**ROUNDS[name], **value} for name, value in changes.items()}}
    assert problems_of(**sections) == {key: message}


def test_few_micro_batches_are_warned_of() -> None:
    (warning,) = plan_of(micro=1, stages=2)[1].warnings
    assert warning == (
        "the 2 stages of the pipeline are idle 50% of the time: data.grad_accum_steps is 1, and 8 "
        "would make it 11%"
    )
    assert plan_of(micro=8)[1].warnings == ()


def test_idle_stages_take_time_but_no_model_flops() -> None:
    staged, whole = (bounds(*plan_of(stages=n)) for n in (2, 1))
    assert staged and whole
    assert staged.program_flops == whole.program_flops
    output = 6 * 128_256 * 4096 * staged.tokens
    idle = (staged.program_flops - output) / 8
    assert staged.compute_s - whole.compute_s == pytest.approx(idle / staged.peak_flops)


def test_the_forecast_has_the_bubble() -> None:
    few, many = (estimated(*plan_of(micro=micro)) for micro in (2, 16))
    assert few and many
    per_row = [one.parts["attention"] / micro for one, micro in ((few, 2), (many, 16))]
    assert per_row[0] / per_row[1] == pytest.approx((3 / 2) / (17 / 16))


def test_only_activations_cross_slices() -> None:
    job, plan = plan_of()
    (crossing,) = [one for one in traffic(job, plan) if one.link == "dcn"]
    micro_batch = LLAMA_ROWS // 32 * 4096 * 4096 * 2
    passed_on, sums = 2 * 9, 4 * 8
    assert crossing.axis == "pipeline"
    assert crossing.bytes == 4 * (passed_on + sums) * micro_batch


def test_rounds_shorten_the_bubble_and_send_activations_more_often() -> None:
    one, two = (plan_of(remat="full", pipeline_rounds=rounds) for rounds in (1, 2))
    forecasts = [estimated(*planned) for planned in (one, two)]
    assert all(forecasts)
    attention = [forecast.parts["attention"] for forecast in forecasts if forecast]
    assert attention[1] / attention[0] == pytest.approx((17 / 16) / (9 / 8))
    (crossing,) = [sent for sent in traffic(*two) if sent.link == "dcn"]
    assert crossing.axis == "pipeline"
    assert crossing.bytes == 4 * (2 * 17 + 4 * 8) * LLAMA_ROWS // 32 * 4096 * 4096 * 2


def test_rounds_gather_each_weight_fewer_times() -> None:
    one, two = (plan_of(remat="full", pipeline_rounds=rounds)[1] for rounds in (1, 2))
    array = next(array for array in one.parameters if "layer" in array.axes)
    assert [pipeline.uses(array, plan) for plan in (one, two)] == [9, 8.5]


def test_the_search_tries_rounds() -> None:
    job, plan = plan_of(remat="full", micro=4)
    found = [one for one in alternatives(job, plan) if one.plan.pipeline_rounds > 1]
    assert {one.plan.pipeline_rounds for one in found} == {2, 4, 8, 16}
    assert all(one.plan.mesh["pipeline"] == 2 for one in found)
    assert {one.job.decoder.remat for one in found} == {"dots", "attention", "full"}


def test_stages_inside_a_slice_use_its_links() -> None:
    axes = {(one.axis, one.link) for one in traffic(*plan_of(slices=1, fsdp=16))}
    assert axes == {("pipeline", "ici"), ("fsdp", "ici")}


def test_a_stage_keeps_its_layers_activations_of_all_ticks() -> None:
    staged, whole = (footprint(*plan_of(stages=n)) for n in (2, 1))
    one_copy = LLAMA_ROWS // 32 * 4096 * 4096 * 2
    # Without stages, gradients of micro-batches are accumulated beside their own.
    between = (2 * 9 + 8) * one_copy
    assert staged.kept - between == 9 * whole.kept
    assert staged.gradients == pytest.approx(whole.gradients / 4, rel=0.01)


def test_what_crosses_stages_is_compared_with_what_must() -> None:
    job, plan = plan_of()
    sent = Collective("collective-permute", "other", False, "pipeline", "dcn", False, 9, 100, None)
    share = shares([sent], job, plan)["pipeline"]
    assert share.sent == 100
    assert share.must == (2 * 9 + 4 * 8) * LLAMA_ROWS // 32 * 4096 * 4096 * 2
