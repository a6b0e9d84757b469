"""The forecast of a host's memory: what counts in which phase, and how it grows."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.worlds import CORPUS, V4_32, cpu_world, tiny_job
from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel
from trainer.contract.estimates.host_memory import (
    PROCESS_BYTES,
    HostMemory,
    checkpoint_bytes,
    host_memory,
    in_memory_bytes,
    state_bytes,
)
from trainer.contract.planning.plan import World
from trainer.contract.planning.planner import resolve

REAL_V4_32 = V4_32.model_copy(update={"simulated": False})
MODEL = {"layers": 2, "d_model": 64, "heads": 4, "d_ff": 128}
DATA = {"source": "stdlib", "seq_len": 64, "global_batch": 16}


def job_of(**sections: Any) -> Job:
    return tiny_job(**{"model": MODEL, "data": DATA, **sections})


def forecast(job: Job, world: World, *, may_shrink: bool = False) -> HostMemory:
    return host_memory(job, resolve(job, world, CORPUS), may_shrink=may_shrink)


def totals(found: HostMemory) -> dict[str, int]:
    return {phase.name: phase.total for phase in found.phases}


worlds = st.sampled_from([cpu_world(1, 1), cpu_world(1, 4), cpu_world(2, 2), REAL_V4_32])
jobs = st.builds(
    lambda layers, width, batch, accumulated, in_memory: job_of(
        model={**MODEL, "layers": layers, "d_model": 64 * width},
        data={**DATA, "global_batch": 64 * batch, "grad_accum_steps": accumulated},
        checkpoint={"in_memory_every_steps": in_memory},
    ),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 5]),
)


@given(jobs, worlds)
def test_a_phase_is_the_sum_of_its_parts_and_the_peak_the_largest(job: Job, world: World) -> None:
    found = forecast(job, world)
    assert all(phase.total == sum(phase.parts.values()) for phase in found.phases)
    assert found.peak.total == max(totals(found).values())
    assert all(size > 0 for phase in found.phases for size in phase.parts.values())


@given(jobs, worlds, st.sampled_from(["layers", "d_model", "d_ff"]))
def test_a_larger_model_never_needs_less_in_any_phase(job: Job, world: World, key: str) -> None:
    larger = job.model_copy(
        update={"model": job.decoder.model_copy(update={key: 2 * getattr(job.decoder, key)})}
    )
    before, after = forecast(job, world), forecast(larger, world)
    assert all(after.phase(name).total >= total for name, total in totals(before).items())
    assert after.export_bytes >= before.export_bytes


@given(jobs, worlds)
def test_a_larger_batch_needs_more_to_run_and_as_much_to_restore(job: Job, world: World) -> None:
    data = job.data.model_copy(update={"global_batch": 2 * job.data.global_batch})
    before, after = forecast(job, world), forecast(job.model_copy(update={"data": data}), world)
    assert after.phase("run").total > before.phase("run").total
    assert after.phase("restore") == before.phase("restore")


@given(jobs, worlds)
def test_a_save_needs_what_a_run_needs_and_its_copy(job: Job, world: World) -> None:
    found = forecast(job, world)
    run, save = found.phase("run"), found.phase("save")
    assert save.parts == {**run.parts, "staging": save.parts["staging"]}


@given(jobs, st.sampled_from([cpu_world(1, 1), cpu_world(2, 1), cpu_world(4, 1)]))
def test_slots_of_hosts_hold_the_state_twice_and_that_of_a_neighbor(job: Job, world: World) -> None:
    plan = resolve(job, world, CORPUS)
    held = in_memory_bytes(job, plan)
    copies = 2 if world.processes == 1 else 4
    least = copies * min(state_bytes(job, plan), checkpoint_bytes(job, plan))
    assert job.checkpoint
    expected = 0 if job.checkpoint.in_memory_every_steps is None else least
    assert expected <= held <= expected + copies * (1 << 20)


def test_arrays_of_accelerators_are_not_in_the_memory_of_hosts() -> None:
    found = forecast(job_of(), REAL_V4_32)
    names = {name for phase in found.phases for name in phase.parts}
    assert names.isdisjoint({"arrays", "step", "programs", "initialization"})
    assert "compiler" in found.phase("compile").parts


def test_arrays_of_simulated_accelerators_are_in_the_memory_of_hosts() -> None:
    found = forecast(job_of(), V4_32)
    assert found.phase("run").parts["arrays"] > 0
    assert "compiler" not in found.phase("compile").parts


def test_a_run_without_checkpoints_neither_saves_nor_restores() -> None:
    found = forecast(job_of(checkpoint=None), cpu_world(1, 1))
    assert list(totals(found)) == ["prepare", "compile", "run"]


def test_a_save_into_memory_copies_all_shards_of_an_accelerator_host() -> None:
    without = forecast(job_of(checkpoint={"every_steps": 5}), REAL_V4_32)
    with_slots = forecast(
        job_of(checkpoint={"every_steps": 5, "in_memory_every_steps": 1}), REAL_V4_32
    )
    job = job_of()
    more = with_slots.phase("save").parts["staging"] - without.phase("save").parts["staging"]
    assert more == state_bytes(job, resolve(job, REAL_V4_32, CORPUS))


@given(jobs)
def test_a_host_needs_as_much_as_its_processes_would_on_hosts_of_their_own(job: Job) -> None:
    alone = forecast(job, cpu_world(4, 1))
    together = forecast(job, cpu_world(2, 2, processes_per_host=2))
    assert totals(together) == {name: 2 * size for name, size in totals(alone).items()}


def test_a_standby_process_counts_once_the_run_has_begun() -> None:
    found = forecast(job_of(), REAL_V4_32)
    assert found.phase("run").parts["standby process"] == PROCESS_BYTES
    assert "standby process" not in found.phase("restore").parts


def test_a_job_without_standby_processes_counts_none() -> None:
    found = forecast(job_of(retries={"standby_after_s": None}), REAL_V4_32)
    assert "standby process" not in found.phase("run").parts


def test_cpu_hosts_of_a_run_that_may_shrink_compile_ahead() -> None:
    found = forecast(job_of(), cpu_world(2, 1), may_shrink=True)
    programs = found.phase("run").parts["programs"]
    assert found.phase("run").parts["compilation ahead"] == PROCESS_BYTES + programs
    on_accelerators = forecast(job_of(), REAL_V4_32, may_shrink=True)
    assert "compilation ahead" not in on_accelerators.phase("run").parts


def test_files_of_tokens_need_no_memory_for_tokenizing() -> None:
    data = {**DATA, "source": "tokens", "path": "x/*.bin"}
    assert "tokenizer" not in forecast(job_of(data=data), REAL_V4_32).phase("prepare").parts


def test_a_tokenizer_in_rust_needs_more_than_bytes() -> None:
    trained = {**DATA, "tokenizer": {"train": 512}}
    size = forecast(job_of(data=trained), REAL_V4_32).phase("prepare").parts["tokenizer"]
    assert size > forecast(job_of(), REAL_V4_32).phase("prepare").parts["tokenizer"]


def test_a_custom_model_counts_its_gradients_and_has_no_export() -> None:
    job, world = job_of(), cpu_world(1, 1)
    plan = resolve(job, world, CORPUS)
    custom = job.model_copy(update={"model": CustomModel(module="own_model:Own")})
    found = host_memory(custom, plan, may_shrink=False)
    gradients = sum(one.bytes_per_device for one in plan.trained)
    assert found.phase("run").parts["step"] == 2 * gradients
    assert found.export_bytes == 0
    assert forecast(job, world).export_bytes > PROCESS_BYTES


def test_offloaded_moments_are_in_the_memory_of_hosts_of_accelerators() -> None:
    job = job_of(optimizer={"offload_moments": True})
    found = forecast(job, REAL_V4_32)
    parameters = resolve(job, REAL_V4_32, CORPUS).parameters
    moments = 4 * 2 * sum(array.bytes_per_device for array in parameters)
    assert {phase.name: phase.parts.get("offloaded moments") for phase in found.phases} == {
        "prepare": None, "restore": moments, "compile": moments, "run": moments, "save": moments,
    }  # fmt: skip
    assert "offloaded moments" not in forecast(job, cpu_world(1, 4)).peak.parts


def test_offloaded_activations_are_in_the_memory_of_hosts_of_accelerators() -> None:
    job = job_of(model={**MODEL, "remat": "full", "offload": ["layer_input"]})
    found = forecast(job, REAL_V4_32)
    rows_of_a_host, width, bytes_each = 16 // 4, 64, 2
    assert [phase.parts.get("offloaded activations") for phase in found.phases] == [
        None, None, None, *2 * [2 * rows_of_a_host * 64 * width * bytes_each],
    ]  # fmt: skip
    assert "offloaded activations" not in forecast(job, cpu_world(1, 4)).peak.parts
