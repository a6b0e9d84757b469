"""A job on a world becomes a plan, or one list of everything that does not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worlds import CORPUS, TWO_V5E_16, V4_32, cpu_world, mesh_of, tiny_job
from trainer.contract.config.job import Job
from trainer.contract.estimates.traffic import to_experts
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import PlanError, resolve


def problems_of(world=V4_32, **sections) -> dict[str, str]:
    with pytest.raises(PlanError) as caught:
        resolve(tiny_job(**sections), world, CORPUS)
    return dict(caught.value.problems)


def data(**changes) -> dict:
    return {"source": "stdlib", "seq_len": 64, "global_batch": 16, **changes}


def test_the_free_axis_takes_what_is_left() -> None:
    plan = resolve(tiny_job(mesh={"tensor": 2}), V4_32, CORPUS)
    assert plan.mesh == mesh_of(fsdp=8, tensor=2)


def test_data_counts_the_slices_by_default() -> None:
    plan = resolve(tiny_job(data=data(global_batch=32)), TWO_V5E_16, CORPUS)
    assert plan.mesh == mesh_of(data=2, fsdp=16)


def test_a_mesh_that_does_not_fit_names_the_sizes_that_do() -> None:
    message = problems_of(mesh={"tensor": 3})["mesh"]
    assert "tensor 3 does not divide the 16 devices" in message
    assert "1, 2, 4, 8, 16" in message


def test_two_free_axes_are_one_too_many() -> None:
    assert "only one axis can be -1" in problems_of(mesh={"data": -1, "fsdp": -1})["mesh"]


def test_a_batch_that_does_not_divide_names_the_nearest_that_does() -> None:
    message = problems_of(data=data(global_batch=24))["data.global_batch"]
    assert message.endswith("= 16. The nearest valid value: 16 or 32")


def test_query_heads_must_divide_by_the_tensor_axis() -> None:
    assert (
        "4 query heads are not divisible by tensor 8"
        in problems_of(mesh={"tensor": 8})["mesh.tensor"]
    )


def test_key_value_heads_that_do_not_divide_are_replicated_with_a_warning() -> None:
    plan = resolve(tiny_job(mesh={"tensor": 4}), V4_32, CORPUS)
    key = next(p for p in plan.parameters if p.name == "layers.attention.key.kernel")
    assert key.spec == (None, "fsdp", None, None)
    (warning,) = plan.warnings
    assert "kv_heads 2 is not divisible by tensor 4" in warning
    assert "MiB of parameters per device)" in warning


def test_a_vocabulary_that_does_not_divide_is_padded() -> None:
    job = tiny_job(
        model={"preset": "tiny", "heads": 6, "d_model": 96}, data=data(global_batch=12),
        mesh={"tensor": 3},
    )  # fmt: skip
    plan = resolve(job, cpu_world(2, 6), CORPUS)
    assert plan.padded_vocab == 384
    assert plan.padded_vocab % 3 == 0


def test_offload_needs_rematerialization() -> None:
    model = {"preset": "tiny", "offload": ["qkv"]}
    assert (
        "Set model.remat to dots or attention or full" in problems_of(model=model)["model.offload"]
    )


def test_all_problems_are_reported_at_once() -> None:
    model = {"preset": "tiny", "kv_heads": 3, "head_dim": 15}
    found = problems_of(model=model, mesh={"tensor": 3}, data=data(path="*.txt"))
    assert set(found) == {"model.kv_heads", "model.head_dim", "data.path", "mesh"}


def test_tensor_groups_that_cut_hosts_apart_are_refused() -> None:
    job_sections = {"mesh": {"tensor": 2}, "data": data(global_batch=12)}
    message = problems_of(cpu_world(2, 3), **job_sections)["mesh.tensor"]
    assert "would split hosts of 3 devices unevenly" in message


def test_hosts_that_hold_the_same_rows_read_the_same_block() -> None:
    plan = resolve(tiny_job(mesh={"tensor": 4}), cpu_world(4, 2), CORPUS)
    assert plan.batch.block_of_process == (0, 0, 1, 1)
    assert plan.batch.rows_per_process == 8


def test_parts_of_a_row_are_read_as_a_whole_by_each_host_that_has_some() -> None:
    plan = resolve(tiny_job(mesh={"context": 4}), cpu_world(4, 2), CORPUS)
    assert plan.batch.block_of_process == (0, 0, 1, 1)
    assert (plan.batch.rows_per_device, plan.batch.positions_per_device) == (8, 16)


def test_context_groups_that_cut_hosts_apart_are_refused() -> None:
    sections = {"mesh": {"context": 2}, "data": data(global_batch=12)}
    message = problems_of(cpu_world(2, 3), **sections)["mesh.context"]
    assert message.startswith("context 2 x tensor 1 would split hosts of 3 devices unevenly")


def test_a_sequence_that_does_not_divide_names_the_sizes_that_do() -> None:
    message = problems_of(mesh={"context": 8}, data=data(seq_len=40))["mesh.context"]
    assert message == (
        "seq_len 40 is not divisible by the 16 chunks of context 8. Valid sizes: 1, 2, 4, 5, 10, 20"
    )


def test_attention_by_heads_needs_a_part_of_them_for_each_device() -> None:
    mesh = {"context": 4, "context_attention": "heads"}
    found = problems_of(mesh=mesh, model={"preset": "tiny", "heads": 4, "kv_heads": 2})
    assert found["mesh.context_attention"] == (
        "2 key/value heads are not divisible by context 4 x tensor 1. Set it to chunks"
    )
    found = problems_of(mesh=mesh, model={"module": "a:b"})
    assert found["mesh.context_attention"].endswith("Remove this key")


def test_the_room_of_experts_is_in_whole_sequences() -> None:
    model = {"preset": "tiny", "moe": {"count": 4, "capacity_factor": 1.25}}
    message = problems_of(mesh={"context": 2}, model=model)["mesh.context"]
    assert message.endswith("Remove this key, or set model.moe.capacity_factor=null")


def moe_job(top_k: int, devices: int, remat: str = "none") -> Job:
    model = {"preset": "tiny", "moe": {"count": 8, "top_k": top_k}, "remat": remat}
    return tiny_job(mesh={"expert": devices}, model=model)


@pytest.mark.parametrize(
    ("top_k", "devices", "kind"),
    [
        (2, 2, "megablox"),
        (2, 4, "megablox_exchange"),
        (2, 8, "megablox_exchange"),
        (8, 4, "megablox"),
        (8, 8, "megablox_exchange"),
    ],
)
def test_rows_are_exchanged_where_that_sends_no_more(top_k: int, devices: int, kind: str) -> None:
    plan = resolve(moe_job(top_k, devices), V4_32.model_copy(update={"simulated": False}), CORPUS)
    assert plan.moe == kind


def test_a_row_for_each_choice_leaves_a_device_or_all_tokens_come_to_it() -> None:
    world = V4_32.model_copy(update={"simulated": False})
    jobs = [moe_job(2, devices) for devices in (2, 4, 8)]
    gathered, quarter, eighth = (to_experts(job, resolve(job, world, CORPUS)) for job in jobs)
    # Of two rows per token, 3 of 4 and 7 of 8 leave the device; 1 token of 2 comes to it.
    assert [quarter / gathered, eighth / gathered] == [1.5, 1.75]


@pytest.mark.parametrize(("devices", "repeated"), [(2, 1), (4, 2)])
def test_rematerialization_repeats_exchanges(devices: int, repeated: int) -> None:
    world = V4_32.model_copy(update={"simulated": False})
    jobs = [moe_job(2, devices, remat) for remat in ("none", "full")]
    once, again = (to_experts(job, resolve(job, world, CORPUS)) for job in jobs)
    assert again / once == 1 + repeated / 4


@given(
    hosts=st.sampled_from([1, 2, 3, 4]),
    devices=st.sampled_from([1, 2, 4]),
    context=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2, 4]),
    micro=st.sampled_from([1, 2, 4]),
)
def test_the_blocks_of_a_plan_make_up_the_global_batch(
    hosts, devices, context, tensor, micro
) -> None:
    mesh = {"context": context, "tensor": tensor}
    job = tiny_job(mesh=mesh, data=data(global_batch=96, grad_accum_steps=micro))
    try:
        plan = resolve(job, cpu_world(hosts, devices), CORPUS)
    except PlanError:
        return
    batch = plan.batch
    assert batch.blocks * batch.rows_per_process == 96
    assert sorted(set(batch.block_of_process)) == list(range(batch.blocks))
    rows = batch.rows_per_device * micro * plan.mesh["data"] * plan.mesh["fsdp"]
    assert rows == 96


def test_a_plan_survives_its_file() -> None:
    plan = resolve(tiny_job(), V4_32, CORPUS)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_only_wsd_has_last_steps_in_which_it_falls() -> None:
    found = problems_of(optimizer={"decay_steps": 3})["optimizer.decay_steps"]
    assert found == "schedule 'cosine' does not use this key. Remove it, or set schedule: wsd"


def test_warm_up_and_fall_fit_into_the_run() -> None:
    settings = {"schedule": "wsd", "warmup_steps": 8, "decay_steps": 10**6}
    found = problems_of(optimizer=settings)["optimizer.decay_steps"]
    assert found.startswith("1000000 plus 8 steps of warm-up exceed the run's")
