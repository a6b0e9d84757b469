"""Sums that each CPU device makes for its own rows: the numbers of the compiler's sums."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from tests.support.harness import Bench
from tests.support.jobs import corpus_of, job_of, world_of
from trainer.analysis import collectives
from trainer.contract.planning import local_sums
from trainer.contract.planning.local_sums import sums_locally
from trainer.contract.planning.plan import Replay
from trainer.contract.planning.planner import resolve

ROWS = {"fsdp": 4}
BOTH = {"data": 2, "fsdp": 2}
COPIES = {"data": 4, "fsdp": 1}
JOBS = {
    "shards": {"mesh": ROWS},
    "shards and copies": {"mesh": BOTH},
    "copies": {"mesh": COPIES},
    "micro-batches": {"mesh": BOTH, "data": {"global_batch": 8, "grad_accum_steps": 2}},
    "dropout and z-loss": {
        "mesh": ROWS, "model": {"dropout": 0.1}, "optimizer": {"z_loss": 1e-3}
    },
}  # fmt: skip


MOE = {"moe": {"count": 4, "top_k": 2}}


def made(**changes: Any) -> Bench:
    return Bench.of(job_of(**changes), world_of(1, 4))


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
def test_steps_are_those_of_sums_by_the_compiler(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = made(**changes)
    assert one.program.sums_locally
    monkeypatch.setattr(local_sums, "MOST_BYTES", 0)
    other = made(**changes)
    assert not other.program.sums_locally
    for found, wanted in zip(one.run(3)[1], other.run(3)[1], strict=True):
        np.testing.assert_allclose(found.loss, wanted.loss, rtol=1e-4)
        np.testing.assert_allclose(found.grad_norm, wanted.grad_norm, rtol=1e-3)
        assert (found.tokens, found.examples) == (wanted.tokens, wanted.examples)


def test_a_step_gathers_and_scatters_all_layers_at_once() -> None:
    one = made(mesh=ROWS, optimizer={"name": "adamw"})
    counts = Counter[str]()
    for each in collectives.of(one.text, one.plan):
        counts[each.kind] += each.count
    # The sums: loss, targets and gradients of norms; the gradient's norm; digests and requests.
    assert counts == {"all-gather": 1, "reduce-scatter": 1, "all-reduce": 3}


@pytest.mark.parametrize(
    ("devices", "changes"),
    [
        pytest.param(1, {}, id="one device"),
        pytest.param(4, {"mesh": {"fsdp": 2, "tensor": 2}}, id="split features"),
        pytest.param(4, {"mesh": {"fsdp": 2, "context": 2}}, id="split positions"),
        pytest.param(4, {"mesh": ROWS, "model": MOE}, id="experts"),
        pytest.param(4, {"mesh": ROWS, "model": {"precision": "int8"}}, id="8 bits"),
        pytest.param(4, {"mesh": ROWS, "model": {"d_ff": 2**22}}, id="large weights"),
    ],
)
def test_other_jobs_leave_the_sums_to_the_compiler(devices: int, changes: dict[str, Any]) -> None:
    job = job_of(**changes)
    assert not sums_locally(job, resolve(job, world_of(1, devices), corpus_of(job)))


def test_a_replay_with_reordered_sums_leaves_them_to_the_compiler() -> None:
    job = job_of(mesh=ROWS)
    plan = resolve(job, world_of(1, 4), corpus_of(job))
    usual, reordered = (
        plan.model_copy(update={"replay": Replay(checkpoint=None, first_step=1, reordered=other)})
        for other in (False, True)
    )
    assert sums_locally(job, usual)
    assert not sums_locally(job, reordered)
