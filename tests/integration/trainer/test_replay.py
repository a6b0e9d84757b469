"""A replay in this process: its digests, and the flipped bit that an audit finds by them."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from launcher.audit.audit import audit
from launcher.audit.result import AuditKind
from tests.support.audited_hosts import EVERY, AuditedHosts, Flip, install_flips, recorded_by
from tests.support.harness import Bench, bench
from tests.support.jobs import job_of
from trainer.checkpoint.facts import array_facts
from trainer.checkpoint.tree import flatten
from trainer.contract.planning.plan import Replay
from trainer.contract.records import replay_file
from trainer.data.loader import BatchLoader
from trainer.distributed.stop_vote import StopRequest, StopVote
from trainer.integrity.replay import Recorder
from trainer.step import train_step
from trainer.step.train_step import TrainProgram

STEPS = 2 * EVERY
SMALL = {"layers": 2, "d_model": 16, "heads": 2, "kv_heads": 2, "d_ff": 32}


def bench_of(name: str) -> Bench:
    return bench(job_of(name=name, steps=STEPS, model=SMALL, mesh={"fsdp": 4}), devices=4)


def test_digests_of_a_replay_are_those_of_checkpoints(tmp_path: Path) -> None:
    made = bench_of("replayed")
    recorder = Recorder(made.program, Replay(checkpoint=None, first_step=2), tmp_path, process=0)
    step = recorder.recording(lambda state, batch, *_: made.compiled(state, batch))
    nothing = StopVote(made.program.mesh).array(StopRequest.NOTHING)
    state, batches = made.initial(), made.loader.training(1)
    with jax.set_mesh(made.program.mesh):
        for _ in range(3):
            state, metrics = step(state, next(batches), nothing, made.program.no_limits)
    expected, _ = made.run(3)
    recorded = replay_file.read(tmp_path)
    assert sorted(recorded) == [2, 3]
    facts = array_facts(flatten(expected))
    assert {n: sum(d) % 2**32 for n, d in recorded[3].state.items()} == {
        name: array.digest for name, array in facts.items()
    }
    assert len(recorded[3].gradients["layers.mlp.up.kernel"]) == SMALL["layers"]
    assert len(recorded[3].gradients["embedding.table"]) == 1
    assert recorded[3].loss == float(metrics.loss)
    assert recorded[3].examples == f"{int(metrics.examples):08x}"


@pytest.fixture
def flips(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The training step of hosts with faults, until the end of the test."""
    for owner, name in (
        (BatchLoader, "training"),
        (TrainProgram, "_sums"),
        (train_step, "of_all_devices"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    install_flips()
    yield


@pytest.mark.parametrize(("host", "step"), [(2, EVERY + 2), (0, STEPS)])
def test_audit_finds_step_layer_and_host_of_a_flip(flips: None, host: int, step: int) -> None:
    made = bench_of("flipped")
    array, bit = sorted(made.first.params).index("layers.mlp.up.kernel"), 20
    hosts = AuditedHosts(made, made, Flip(host, step, (array << 13) | (bit << 8) | 3))
    verdict = audit(recorded_by(hosts, 1, STEPS), hosts, is_same_program=True)
    assert (verdict.kind, verdict.suspects) == (AuditKind.CORRUPT_HOST, (host,)), verdict
    assert verdict.difference and verdict.difference.step == step
    assert any(name.startswith("layers.mlp.up.kernel[") for name in verdict.difference.arrays)
