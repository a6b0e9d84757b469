"""A run that goes on from a checkpoint computes what the run that never stopped computes."""

import json
import shutil
import signal
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import gang
from tests.support.fault_injection import COMMITS, hook
from tests.support.jobs import job_of, world_of
from tests.support.sampling import sampled
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.metrics_file import curve
from trainer.data import pipeline, token_cache
from trainer.step.bookkeeping import digest

SAVED, STEPS = 6, 12
OTHERS = {
    "one device": (world_of(1, 1), {}),
    "4 x 1, tensor across hosts": (world_of(4, 1), {"tensor": 2}),
    "2 x 2, context": (world_of(2, 2), {"context": 2}),
}
"""Meshes on which a run goes on: hosts and devices, and the axes."""


def _job(**changes):
    job = {
        "steps": STEPS,
        "model": {"dropout": 0.1},
        "optimizer": {"learning_rate": 3e-4},
        "checkpoint": {"every_steps": SAVED, "keep": 2},
    }
    return job_of(**{**job, **changes})


def _ok(ended):
    assert set(ended.codes) == {0}, "\n".join(ended.outputs)
    return ended


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> gang.Ended:
    """The run that never stopped, on 2 x 2."""
    return _ok(gang.run(_job(), world_of(2, 2), tmp_path_factory.mktemp("whole")))


@pytest.fixture
def half(whole, tmp_path) -> Path:
    return _half(whole, tmp_path / "half")


def _half(whole: gang.Ended, folder: Path) -> Path:
    """The same run as it was after step 6, in another folder."""
    shutil.copytree(whole.run_dir, folder)
    shutil.rmtree(folder / "checkpoints" / str(STEPS))
    return folder


def _resumed(folder, world, **changes):
    return _ok(gang.run(_job(**changes), world, folder, attempt=2))


def _attempt(ended, number):
    return [line for line in ended.steps() if line["attempt"] == number]


@pytest.fixture(scope="module")
def resumed(whole, tmp_path_factory) -> gang.Ended:
    """The second half on the same hosts."""
    return _resumed(_half(whole, tmp_path_factory.mktemp("resumed") / "half"), world_of(2, 2))


@pytest.mark.slow
def test_on_the_same_mesh_it_is_equal_to_the_last_bit(whole, resumed):
    for name in ("step", "loss", "grad_norm", "examples", "learning_rate", "tokens", "epoch"):
        again = [line[name] for line in _attempt(resumed, 2)]
        assert again == [line[name] for line in whole.steps()[SAVED:]]


@pytest.mark.slow
@pytest.mark.parametrize(("world", "mesh"), sampled(OTHERS, ("4 x 1, tensor across hosts",)))
def test_on_another_mesh_losses_and_examples_are_the_same(whole, half, world, mesh):
    ended = _resumed(half, world, mesh=mesh)
    lines, planned = _attempt(ended, 2), whole.steps()[SAVED:]
    np.testing.assert_allclose(
        [line["loss"] for line in lines], [line["loss"] for line in planned], rtol=1e-5
    )
    assert [line["examples"] for line in lines] == [line["examples"] for line in planned]


@pytest.mark.slow
def test_its_first_line_says_what_was_restored_and_where(half):
    ended = _resumed(half, world_of(1, 2), mesh={"tensor": 2})
    first = ended.outputs[0].splitlines()[0]
    assert first == (
        "restored step 6, saved on 2 hosts x 2 devices (fsdp 4), now on 1 x 2 (tensor 2)"
    )


@pytest.mark.slow
def test_a_resume_with_other_code_than_the_checkpoints_is_reported(half):
    about = half / "checkpoints" / str(SAVED) / "about.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "code": "0" * 64}))
    ended = _resumed(half, world_of(1, 1))
    assert "changed since the checkpoint: code: 000000000000 -> " in ended.outputs[0]


def test_another_batch_size_uses_every_example_once(tmp_path):
    """Each step's digest of example numbers, against the one order of all examples."""
    policy = {"every_steps": 3, "on_data_change": "continue"}
    job = job_of(steps=3, checkpoint=policy)
    _ok(gang.run(job, world_of(1, 1), tmp_path))
    sizes = {"seq_len": job.data.seq_len, "global_batch": job.data.global_batch // 2}
    changed = job_of(steps=5, checkpoint=policy, data={**sizes})
    ended = _ok(gang.run(changed, world_of(1, 1), tmp_path, attempt=2))
    tokens = token_cache.load(job.data)
    order = pipeline.mixed_order(tokens, job.data.seq_len, job.seed)
    before, after = job.data.global_batch, changed.data.global_batch
    firsts = [0, before, 2 * before, 3 * before, 3 * before + after]
    counts = [before] * 3 + [after] * 2
    wanted = [
        f"{int(digest(jnp.array([order[first + row] for row in range(count)]))):08x}"
        for first, count in zip(firsts, counts, strict=True)
    ]
    assert [line["examples"] for line in ended.steps()] == wanted


@pytest.mark.slow
def test_two_runs_on_one_storage_at_once_do_not_disturb_each_other(tmp_path):
    def job(steps):
        return job_of(steps=steps, storage=str(tmp_path / "storage"), checkpoint={"every_steps": 5})

    folder = tmp_path / "storage" / job(1).name / "checkpoints"
    started = gang.start(job(100_000), world_of(1, 1), tmp_path / "first")
    _wait_for(lambda: checkpoint_metadata.steps(folder), started)
    lease = (folder / "lease.json").read_text()
    second = gang.run(job(10), world_of(1, 1), tmp_path / "second")
    assert second.codes == [64]
    assert "holds the checkpoints of another run" in second.outputs[0]
    assert (folder / "lease.json").read_text() == lease
    seen = checkpoint_metadata.steps(folder)[0]
    _wait_for(lambda: checkpoint_metadata.steps(folder)[0] > seen, started)
    started[0].send_signal(signal.SIGTERM)
    assert gang.wait(tmp_path / "first", started).codes == [75]


@pytest.mark.slow
def test_the_curve_of_both_attempts_is_one(whole, resumed):
    lines = (resumed.run_dir / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in curve(lines) if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert [line["attempt"] for line in steps] == [1] * SAVED + [2] * (STEPS - SAVED)
    assert [line["loss"] for line in steps] == whole.losses()


@pytest.mark.parametrize(
    ("moment", "left"),
    [
        pytest.param("renamed", {"2", "4", "lease.json"}, id="before the garbage collection"),
        pytest.param("committed", {"4", "lease.json"}, id="right after the commit"),
    ],
)
@pytest.mark.slow
def test_kill_9_around_a_commit_loses_no_step_and_leaves_nothing(whole, tmp_path, moment, left):
    kill = f"(moment, step) == ({moment!r}, 4) and os.kill(os.getpid(), signal.SIGKILL)"
    sabotaged = {"PYTHONPATH": str(hook(tmp_path, "trainer.checkpoint.saver", COMMITS, kill))}
    job, world = _job(checkpoint={"every_steps": 2, "keep": 1}), world_of(1, 1)
    killed = gang.wait(tmp_path, gang.start(job, world, tmp_path, host_env={0: sabotaged}))
    assert killed.codes == [-signal.SIGKILL], killed.outputs
    folder = tmp_path / "checkpoints"
    assert {path.name for path in folder.iterdir()} == left
    ended = _ok(gang.run(job, world, tmp_path, attempt=2))
    assert ended.outputs[0].startswith("restored step 4,")
    steps = [
        line
        for line in curve((tmp_path / "metrics.jsonl").read_text().splitlines())
        if "loss" in line
    ]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert [line["examples"] for line in steps] == [line["examples"] for line in whole.steps()]
    assert [line["step"] for line in _attempt(ended, 2)] == list(range(5, STEPS + 1))
    assert {path.name for path in folder.iterdir()} == {str(STEPS), "lease.json"}


@pytest.mark.slow
def test_sigterm_to_one_process_saves_one_step_on_all_and_ends_with_75(tmp_path):
    started = gang.start(
        _job(steps=100_000, checkpoint={"every_steps": 10**6}), world_of(2, 1), tmp_path
    )
    metrics = tmp_path / "metrics.jsonl"
    _wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > 3, started)
    started[1].send_signal(signal.SIGTERM)
    ended = gang.wait(tmp_path, started)
    assert ended.codes == [75, 75], "\n".join(ended.outputs)
    (step,) = checkpoint_metadata.steps(tmp_path / "checkpoints")
    assert step == ended.steps()[-1]["step"]
    checkpoint_metadata.read(tmp_path / "checkpoints" / str(step))


def _wait_for(condition, started, deadline_s=120.0):
    ends = time.monotonic() + deadline_s
    while not condition():
        assert all(process.poll() is None for process in started), "a process ended"
        assert time.monotonic() < ends, "it did not come in time"
        time.sleep(0.05)
