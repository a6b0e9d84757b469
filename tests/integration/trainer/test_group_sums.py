"""Gradients of several micro-batches cross `data` once, and are those of one device."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.harness import Bench, bench
from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.llama_jobs import CORPUS
from tests.support.llama_jobs import world_of as slices_of
from tests.support.preferences import dpo_job
from tests.support.sampling import sampled
from trainer.analysis import collectives
from trainer.analysis.compile_report import estimate
from trainer.contract.config.job import Job
from trainer.contract.planning import local_sums
from trainer.contract.planning.group_sums import sums_by_group
from trainer.contract.planning.planner import resolve

STEPS = 4
GROUPS = {"data": 2, "fsdp": 2}
MOE = {"count": 4, "top_k": 2}
JOBS: dict[str, dict[str, Any]] = {
    "dense": {},
    "dropout, z-loss": {"model": {"dropout": 0.1}, "optimizer": {"z_loss": 1e-3}},
    "experts with capacity": {"model": {"moe": {**MOE, "capacity_factor": 2.0}}},
    "dropless experts": {"model": {"moe": MOE}},
    "8 bits": {"model": {"precision": "int8"}},
}
ALWAYS = ("dense", "dropless experts", "8 bits")
OTHERS: dict[str, dict[str, Any]] = {
    "one micro-batch": {"micro": 1},
    "no groups": {"mesh": {"data": 1, "fsdp": 4}},
    "split features": {"mesh": {"data": 2, "fsdp": 1, "tensor": 2}},
    "offloaded activations": {"model": {"remat": "full", "offload": ["layer_input"]}},
}


@pytest.fixture(autouse=True)
def large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums of small weights on CPU devices are made by each device."""
    monkeypatch.setattr(local_sums, "MOST_BYTES", 0)


def _job(mesh: dict[str, int] = GROUPS, micro: int = 2, **changes: Any) -> Job:
    data = {"global_batch": 8, "grad_accum_steps": micro}
    return job_of(steps=STEPS, mesh=mesh, data=data, **changes)


@pytest.mark.parametrize("changes", sampled(JOBS, ALWAYS))
def test_losses_are_those_of_one_device(changes: dict[str, Any]) -> None:
    made = bench(_job(**changes), 4)
    assert made.program.sums_by_group
    tolerance = 1e-3 if "precision" in changes.get("model", {}) else 1e-5
    alone = bench(_job({}, **changes)).run(STEPS)[1]
    for here, there in zip(made.run(STEPS)[1], alone, strict=True):
        np.testing.assert_allclose(here.loss, there.loss, rtol=tolerance)
        np.testing.assert_allclose(here.grad_norm, there.grad_norm, rtol=100 * tolerance)
        assert (here.tokens, here.examples) == (there.tokens, there.examples)


def test_so_are_those_of_pairs(tmp_path: Path) -> None:
    split, alone = (
        bench(dpo_job(tmp_path, mesh=mesh, data={"grad_accum_steps": 2}), devices).run(STEPS)[1]
        for mesh, devices in (({"data": 2}, 2), ({}, 1))
    )
    for here, there in zip(split, alone, strict=True):
        assert here.loss == pytest.approx(there.loss, rel=1e-4)
        assert here.reward_margin == pytest.approx(there.reward_margin, abs=1e-4)
        assert here.reward_accuracy == there.reward_accuracy


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS)
def test_in_other_jobs_all_devices_sum_each_micro_batch(changes: dict[str, Any]) -> None:
    job = _job(**changes)
    assert not sums_by_group(job, resolve(job, world_of(1, 4), corpus_of(job)))


def test_as_many_bytes_cross_data_with_any_number_of_micro_batches() -> None:
    sent = []
    for micro in (2, 4):
        made = Bench.of(_job({"data": 2, "fsdp": 1}, micro), world_of(1, 2))
        by_axis = Counter[str]()
        for one in collectives.of(made.text, made.plan):
            by_axis[one.axis] += one.bytes
        sent.append(by_axis["data"])
    few, many = sent
    weights = sum(array.bytes_per_device for array in made.plan.parameters)
    assert many == pytest.approx(few, rel=0.01)
    assert few == pytest.approx(weights, rel=0.05)


@pytest.mark.tpu_compiler
def test_two_slices_send_what_they_must() -> None:
    """uv run --group tpu_compiler pytest -m tpu_compiler"""
    model = {"layers": 4, "d_model": 512, "heads": 4, "kv_heads": 4, "d_ff": 2048, "remat": "full"}
    data = {"seq_len": 256, "global_batch": 128, "grad_accum_steps": 4}
    job = job_of(model=model, data=data, mesh={"data": 2})
    report = estimate(job, resolve(job, slices_of("v5p-16", 2), CORPUS))
    assert report.strategies
    share = report.strategies["data"]
    assert share.must <= share.sent < 1.05 * share.must
