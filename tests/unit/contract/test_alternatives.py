"""What else a job could be on its cluster: all of it legal, none of it another run."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.llama_jobs import job_of, world_of
from tests.support.worlds import CORPUS, V4_32, cpu_world, mesh_of, tiny_job
from trainer.contract.config.job import Job
from trainer.contract.config.loader import dump, load
from trainer.contract.estimates.search import Alternative, alternatives
from trainer.contract.planning.mesh_validation import divisors
from trainer.contract.planning.plan import Plan, World
from trainer.contract.planning.planner import resolve

DATA = {"source": "stdlib", "seq_len": 64}
SIZES = (1, 2, 4, 8, 16)
FEW = settings(max_examples=30)
"""Each is a hundred alternatives."""


def of(job: Job, world: World = V4_32) -> tuple[Plan, list[Alternative]]:
    plan = resolve(job, world, CORPUS)
    return plan, alternatives(job, plan)


WORLDS = [V4_32, world_of("v5e-16", 2), world_of("h200-16"), cpu_world(3, 2), cpu_world(1, 4)]


@st.composite
def planned(draw: st.DrawFn) -> tuple[Job, Plan]:
    """A job that fits its world, with any of its axes left to be what is left over."""
    world = draw(st.sampled_from(WORLDS))
    tensor = draw(st.sampled_from([n for n in (1, 2, 4) if world.devices % n == 0]))
    groups = world.devices // tensor // world.slices
    data = world.slices * draw(st.sampled_from(divisors(groups)))
    mesh = mesh_of(data=data, fsdp=world.devices // tensor // data, tensor=tensor)
    if free := draw(st.sampled_from(["", *mesh])):
        mesh[free] = -1
    grad_accum_steps = draw(st.sampled_from([1, 2, 3]))
    rows = world.devices // tensor * grad_accum_steps * draw(st.sampled_from([1, 4, 6]))
    job = tiny_job(
        model={
            "preset": "tiny",
            "remat": draw(st.sampled_from(["none", "dots", "attention", "full"])),
        },
        data={**DATA, "grad_accum_steps": grad_accum_steps, "global_batch": rows},
        mesh=mesh,
    )
    return job, resolve(job, world, CORPUS)


@FEW
@given(planned())
def test_every_alternative_resolves_to_its_plan(case: tuple[Job, Plan]) -> None:
    job, plan = case
    for one in alternatives(job, plan):
        assert resolve(one.job, plan.world, plan.corpus) == one.plan


@FEW
@given(planned())
def test_nothing_that_changes_the_numbers_of_the_run_is_changed(case: tuple[Job, Plan]) -> None:
    job, plan = case
    for one in alternatives(job, plan):
        model = one.job.decoder.model_copy(update={"remat": job.decoder.remat})
        data = one.job.data.model_copy(update={"grad_accum_steps": job.data.grad_accum_steps})
        changes = {"mesh": job.mesh, "model": model, "data": data}
        assert one.job.model_copy(update=changes) == job
        assert one.plan.batch.global_batch == plan.batch.global_batch


@FEW
@given(planned())
def test_no_two_are_the_same_program(case: tuple[Job, Plan]) -> None:
    job, plan = case
    found = alternatives(job, plan)
    programs = {
        (
            *one.plan.mesh.values(),
            one.plan.pipeline_schedule,
            one.plan.batch.grad_accum_steps,
            one.job.decoder.remat,
        )
        for one in found
    }
    assert len(programs) == len(found)
    assert len({one.overrides for one in found}) == len(found)


@FEW
@given(planned(), st.randoms(use_true_random=False))
def test_the_overrides_make_it_of_the_job_file(case: tuple[Job, Plan], random) -> None:
    job, plan = case
    one = random.choice(alternatives(job, plan))
    with TemporaryDirectory() as folder:
        path = Path(folder, "job.yaml")
        path.write_text(dump(job))
        assert load(path, Job, one.overrides).value == one.job


def test_the_job_as_it_is_comes_first_and_needs_no_override() -> None:
    job = tiny_job(mesh={"tensor": 2})
    plan, found = of(job)
    assert found[0] == Alternative(job, plan, {})


def test_every_alternative_of_a_job_that_offloads_recomputes_something() -> None:
    _, found = of(tiny_job(model={"preset": "tiny", "remat": "full", "offload": ["qkv"]}))
    assert {one.job.decoder.remat for one in found} == {"dots", "attention", "full"}


def test_axis_that_takes_the_rest_is_not_overridden() -> None:
    _, found = of(tiny_job(mesh={"fsdp": -1}))
    two = [one.overrides for one in found if one.plan.mesh["tensor"] == 2]
    assert ("mesh.tensor=2",) in two
    assert not any("fsdp" in override for overrides in two for override in overrides)


def test_every_mesh_that_the_job_fits_on_is_there() -> None:
    _, found = of(tiny_job())
    meshes = [one.plan.mesh for one in found]
    ways = [(d, f, t) for d in SIZES for f in SIZES for t in SIZES if d * f * t == 16]
    wanted = [mesh_of(data=d, fsdp=f, tensor=t) for d, f, t in ways if t <= 4]
    assert all(mesh in wanted for mesh in meshes), "4 heads, 16 rows"
    assert all(mesh in meshes for mesh in wanted)


def test_an_axis_of_parts_of_sequences_stays_as_it_is() -> None:
    _, found = of(tiny_job(mesh={"context": 2}))
    assert {one.plan.mesh["context"] for one in found} == {2}
    assert {one.plan.mesh["fsdp"] for one in found} == {1, 2, 4, 8}


def test_micro_batches_go_down_to_one_row_at_a_time() -> None:
    _, found = of(tiny_job(mesh={"tensor": 4}))
    own_mesh = [one for one in found if one.plan.mesh == mesh_of(fsdp=4, tensor=4)]
    assert {one.plan.batch.grad_accum_steps for one in own_mesh} == {1, 2, 4}


def test_stages_and_replicas_go_over_all_slices() -> None:
    _, found = of(job_of(64), world_of("v5e-16", 2))
    outer = {(one.plan.mesh["pipeline"], one.plan.mesh["data"] % 2) for one in found}
    assert outer == {(1, 0), (2, 0), (2, 1)}


@pytest.mark.parametrize("tensor", [1, 16])
def test_tensor_parallelism_stays_in_gpu_host_by_default(
    tensor: int,
) -> None:
    _, found = of(job_of(16, tensor=tensor), world_of("h200-16"))
    assert {one.plan.mesh["tensor"] for one in found} == {1, 2, 4, 8, tensor}


def test_divisors_are_in_order_and_each_is_there_once() -> None:
    assert [divisors(n) for n in (1, 12, 16)] == [[1], [1, 2, 3, 4, 6, 12], [1, 2, 4, 8, 16]]
    assert len(divisors(10**12)) == 169
