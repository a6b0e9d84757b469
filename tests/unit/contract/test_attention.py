"""The plan names the attention kernel, and why GPUs have none for a job."""

from typing import Any

import pytest

from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.config.job import Job
from trainer.contract.estimates.activations import kept_per_token
from trainer.contract.planning import accelerators
from trainer.contract.planning.attention import packed_documents
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import resolve

MODEL = {"d_model": 256, "heads": 2, "kv_heads": 1, "head_dim": 128}


def job_with(**sections: Any) -> Job:
    return job_of(
        model={**MODEL, **sections.pop("model", {})},
        data={"seq_len": 256, **sections.pop("data", {})},
        **sections,
    )


def plan_of(accelerator: str = "h200-8", simulated: bool = False, **sections: Any) -> Plan:
    chip = accelerators.parse(accelerator)
    job = job_with(**sections)
    world = world_of(
        1,
        chip.devices,
        accelerator=accelerator,
        platform=chip.platform,
        simulated=simulated,
        topology=chip.topology,
        host_bounds=chip.host_bounds,
    )
    return resolve(job, world, corpus_of(job))


ONE_DOCUMENT = {"mask_across_documents": False}


@pytest.mark.parametrize(
    ("kernel", "facts"),
    [
        ("triton", {}),
        ("cudnn_packed", {"data": {"seq_len": 512}}),
        ("triton", {"data": {"seq_len": 512}, "accelerator": "a100-8"}),
        ("cudnn", {"data": ONE_DOCUMENT}),
        ("cudnn", {"data": {**ONE_DOCUMENT, "seq_len": 200}}),
        ("cudnn", {"data": ONE_DOCUMENT, "model": {"sliding_window": 64}}),
        ("cudnn", {"data": ONE_DOCUMENT, "model": {"head_dim": 256}}),
        ("cudnn", {"data": ONE_DOCUMENT, "accelerator": "a100-80gb-8"}),
        ("reference", {"simulated": True}),
    ],
)
def test_gpus_compute_attention_with_a_kernel(kernel: str, facts: dict[str, Any]) -> None:
    plan = plan_of(**facts)
    assert plan.attention == kernel
    assert not [one for one in plan.warnings if "scores" in one]


@pytest.mark.parametrize(("length", "room"), [(512, 2), (4096, 16), (32_768, 64)])
@pytest.mark.parametrize("remat", ["none", "dots"])
def test_memory_counts_the_room_for_packed_documents(remat: str, length: int, room: int) -> None:
    """A float32 sum of each head for each document."""
    assert packed_documents(length) == room
    packed, whole = (
        kept_per_token(job_with(**facts), plan_of(**facts))
        for more in ({}, ONE_DOCUMENT)
        for facts in [{"data": {"seq_len": length, **more}, "model": {"remat": remat}}]
    )
    assert packed - whole == 4 * MODEL["heads"] * room


@pytest.mark.parametrize(
    ("reason", "facts"),
    [
        ("float32 (model.compute_dtype)", {"model": {"compute_dtype": "float32"}}),
        ("model.attention_sinks", {"model": {"attention_sinks": True}}),
        ("model.attn_logit_softcap", {"model": {"attn_logit_softcap": 50.0}}),
        ("not 36", {"model": {"head_dim": 36}}),
        ("up to 128", {"model": {"head_dim": 256}, "accelerator": "a100-8"}),
        ("model.sliding_window with data.mask", {"model": {"sliding_window": 64}}),
        ("data.seq_len, not 200", {"data": {"seq_len": 200}}),
        ("not chunks", {"mesh": {"context": 4, "context_attention": "chunks"}}),
    ],
)
def test_without_a_kernel_the_plan_warns_and_names_why(reason: str, facts: dict[str, Any]) -> None:
    plan = plan_of(**facts)
    assert plan.attention == "reference"
    (warning,) = [one for one in plan.warnings if "scores" in one]
    assert reason in warning


def test_gpu_unknown_to_the_tables_is_planned_without_a_kernel() -> None:
    job = job_of()
    plan = resolve(job, world_of(1, 1, accelerator="rtx-1", platform="gpu"), corpus_of(job))
    assert plan.attention == "reference"
    assert [one for one in plan.warnings if "rtx-1 is an unknown GPU" in one]


@pytest.mark.parametrize(
    ("platform", "kind", "name"),
    [
        ("gpu", "NVIDIA H200", "h200-2"),
        ("gpu", "NVIDIA H100 80GB HBM3", "h100-2"),
        ("gpu", "NVIDIA A100-SXM4-80GB", "a100-80gb-2"),
        ("gpu", "NVIDIA A100-SXM4-40GB", "a100-2"),
        ("gpu", "NVIDIA GB200", "gb200-2"),
        ("cpu", "cpu", "cpu"),
    ],
)
def test_devices_of_a_run_by_hand_have_their_name(platform: str, kind: str, name: str) -> None:
    assert accelerators.of_device_kind(platform, kind, 2) == name
    assert platform == "cpu" or accelerators.parse(name).devices == 2
