"""The training step under explicit axis types: what each kind of parallelism moves."""

import math
import re
from collections import Counter

import pytest

from tests.support.harness import Bench
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.model_families import FAMILIES
from tests.support.sampling import sampled
from trainer.analysis.explicit.step import check_step
from trainer.contract.planning import local_sums
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import ShardingFinding

LAYERS = 3
MODEL = {"layers": LAYERS, "kv_heads": 4}


def step(devices: int, **sections: dict) -> tuple[Plan, list[ShardingFinding]]:
    job = job_of(**{"model": MODEL, **sections})
    plan = resolve(job, world_of(1, devices), corpus_of(job))
    report = check_step(job, plan)
    assert report.stopped == ""
    return plan, report.findings


def kernel_bytes(plan: Plan) -> int:
    """Of the layers' kernels, whole."""
    arrays = (a for a in plan.parameters if a.name.startswith("layers.") and "norm" not in a.axes)
    return sum(4 * math.prod(array.shape) for array in arrays)


def test_on_one_device_nothing_moves() -> None:
    assert step(1)[1] == []


def gathers(found: list[ShardingFinding]) -> list[ShardingFinding]:
    """Of weights along `fsdp`, where the model asks for them."""
    return [one for one in found if one.place[1:] and one.place[1].function == "gathered"]


def test_data_parallelism_gathers_no_weight() -> None:
    _, found = step(4, mesh={"data": 4, "fsdp": 1})
    assert gathers(found) == []
    assert "dot_general" not in {one.operation for one in found}


@pytest.mark.parametrize(("remat", "again"), [("none", 0), ("full", 1)])
def test_fsdp_gathers_every_kernel_for_each_pass(remat: str, again: int) -> None:
    plan, found = step(4, mesh={"fsdp": 4}, model=MODEL | {"remat": remat})
    assert {one.kind for one in gathers(found)} == {"constraint"}
    in_layers = [one for one in gathers(found) if one.times % LAYERS == 0]
    forward, backward = (
        sum(one.bytes for one in in_layers if one.backward is backward)
        for backward in (False, True)
    )
    assert forward == kernel_bytes(plan) * 3 // 4
    assert backward == forward * again


def test_stages_gather_the_kernels_of_their_layers() -> None:
    """Their arrays are checked with a dim for the stage."""
    plan, found = step(6, mesh={"pipeline": 3, "fsdp": 2})
    kernels = {
        (3, *array.shape[1:])
        for array in plan.parameters
        if array.name.startswith("layers.") and array.name.endswith(".kernel")
    }
    in_layers = [one.new for one in gathers(found) if one.new.startswith("float32[3@pipeline")]
    dims = (one.replace("@pipeline", "").partition("[")[2].rstrip("]") for one in in_layers)
    assert {tuple(map(int, one.split(","))) for one in dims} == kernels


def test_the_compiled_step_gathers_the_kernels_that_are_reported_as_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_sums, "MOST_BYTES", 0)  # as on devices that are not CPUs
    job = job_of()
    made = Bench.of(job, world_of(1, 4))
    kernels = {
        ",".join(map(str, array.shape[1:]))
        for array in made.plan.parameters
        if array.name.startswith("layers.") and "norm" not in array.axes
    }
    compiled = Counter(re.findall(r"= f32\[1,([\d,]+)\]\S* all-gather\(", made.text))
    reported: Counter[str] = Counter()
    for one in gathers(check_step(job, made.plan).findings):
        reported[one.new.partition("[")[2].rstrip("]")] += one.times
    assert {shape: reported[shape] for shape in kernels} == {
        shape: compiled[shape] for shape in kernels
    }


def test_tensor_parallelism_adds_up_twice_in_a_layer() -> None:
    _, found = step(2, mesh={"fsdp": 1, "tensor": 2})
    sums = [one for one in found if one.old == "parts over tensor" and one.place[1:]]
    in_layers = [one for one in sums if one.operation == "dot_general"]
    assert [one.times for one in in_layers] == [LAYERS, LAYERS]
    activations = 8 * 32 * 32 * 4
    assert {one.bytes for one in in_layers} == {LAYERS * activations}, "a ring of two moves it once"
    callers = {one.place[1].function for one in in_layers}
    assert callers == {"Attention._mix", "MLP.__call__"}


def test_all_axes_at_once_move_what_each_does() -> None:
    _, found = step(8, mesh={"data": 2, "fsdp": 2, "tensor": 2})
    kinds = {(one.kind, one.operation) for one in found}
    assert kinds == {
        ("ambiguous", "dot_general"),
        ("ambiguous", "gather"),
        ("ambiguous", "reshape"),
        ("constraint", "sharding_constraint"),
    }
    assert {one.place[0].file for one in found} <= {
        "trainer/step/loss.py",
        "trainer/model/layers.py",
        "trainer/model/embeddings.py",
        "trainer/model/sharding.py",
    }


def test_micro_batches_count() -> None:
    once, found = step(2, mesh={"fsdp": 2})
    twice, again = step(2, mesh={"fsdp": 2}, data={"grad_accum_steps": 2})
    assert twice.batch.grad_accum_steps == 2 * once.batch.grad_accum_steps
    gathered, gathered_again = (sum(one.bytes for one in gathers(each)) for each in (found, again))
    assert gathered_again == 2 * gathered > 0


def test_parts_of_sequences_gather_keys_and_values_in_each_layer() -> None:
    _, found = step(4, mesh={"fsdp": 1, "context": 4, "context_attention": "chunks"})
    forward = [
        one
        for one in found
        if not one.backward and any(frame.function == "whole_sequences" for frame in one.place)
    ]
    assert sum(one.times for one in forward) == 2 * LAYERS
    keys = 8 * 32 * 32 * 4
    assert sum(one.bytes for one in forward) == 2 * LAYERS * keys * 3 // 4


def test_heads_are_exchanged_four_times_in_each_layer() -> None:
    _, found = step(4, mesh={"fsdp": 1, "context": 4, "context_attention": "heads"})
    times = Counter[str]()
    for one in found:
        if one.kind == "constraint" and not one.backward:
            times[one.place[1].function] += one.times
    assert times["whole_sequences_of_heads"] == 3 * LAYERS
    assert times["Attention._mix"] == LAYERS


WITH_OWN_PARTS = ("olmo2", "qwen3_moe", "gemma2", "gpt_oss", "deepseek_v2", "deepseek_v3")


@pytest.mark.parametrize("kind", sampled(WITH_OWN_PARTS, ("gemma2", "gpt_oss", "deepseek_v3")))
def test_families_with_parts_of_their_own_are_traced_to_the_end(kind: str) -> None:
    _, found = step(4, mesh={"fsdp": 2, "tensor": 2}, model=FAMILIES[kind])
    assert gathers(found)
