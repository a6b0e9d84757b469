"""Several trainer processes, started by hand, give the numbers of one."""

import numpy as np
import pytest

from tests.support import gang
from tests.support.fault_injection import hook
from tests.support.jobs import job_of, world_of
from tests.support.sampling import sampled

STEPS = 20
V4_16 = {"simulated": True, "platform": "tpu", "accelerator": "v4-16", "topology": (2, 2, 2),
         "host_bounds": (2, 2, 1)}  # fmt: skip
ALWAYS = ("2x4, on a torus",)
GRID = {
    "2x2, fsdp 4": (2, 2, {}, {}),
    "2x2, tensor 4 across hosts": (2, 2, {"tensor": 4}, {}),
    "4x1, fsdp 4": (4, 1, {}, {}),
    "2x2, context 4 across hosts": (2, 2, {"context": 4}, {}),
    "4x1, fsdp 2, context 2 across hosts": (4, 1, {"context": 2}, {}),
    "2x4, on a torus": (2, 4, {"tensor": 2}, V4_16),
    "4x2, fsdp 4, tensor 2": (4, 2, {"tensor": 2}, {}),
}


def _job(**changes):
    evaluate, sample = {"every_steps": 10, "batches": 2}, {"tokens": 10, "temperature": 0.0}
    return job_of(steps=STEPS, eval=evaluate, sample=sample, **changes)


def _run(folder, processes, devices, mesh, facts):
    ended = gang.run(_job(mesh=mesh), world_of(processes, devices, **facts), folder)
    assert ended.codes == [0] * processes, "\n".join(ended.outputs)
    return ended


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("alone"), 1, 1, {}, {})


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "devices", "mesh", "facts"), sampled(GRID, ALWAYS))
def test_every_shape_of_hosts_gives_the_numbers_of_one_device(
    alone, tmp_path, processes, devices, mesh, facts
):
    ended = _run(tmp_path, processes, devices, mesh, facts)
    np.testing.assert_allclose(ended.losses(), alone.losses(), rtol=1e-4)
    assert [line["examples"] for line in ended.steps()] == [
        line["examples"] for line in alone.steps()
    ]
    evaluations = [
        [line["eval_loss"] for line in run.lines() if "eval_loss" in line] for run in (ended, alone)
    ]
    np.testing.assert_allclose(*evaluations, rtol=1e-4)
    samples = [(run.run_dir / "sample.txt").read_text() for run in (ended, alone)]
    assert samples[0] == samples[1]


@pytest.mark.slow
def test_numbers_that_are_not_finite_stop_all_processes(tmp_path):
    job = job_of(steps=6, optimizer={"learning_rate": 1e30, "clip_norm": None})
    ended = gang.run(job, world_of(2, 1), tmp_path)
    assert ended.codes == [65, 65]
    errors = [event["message"] for event in ended.events if event["event"] == "error"]
    assert len(errors) == 2 and all("step 2" in message for message in errors)


SLOW_COMPILER = """\
def change(module):
    wait = module.wait_for_compilers
    def slow(name, deadlines):
        {code}
        wait(name, deadlines)
    module.wait_for_compilers = slow
"""


@pytest.mark.slow
@pytest.mark.full
def test_a_process_that_compiles_35_s_longer_than_the_other_ends_nothing(tmp_path):
    """The first collective would wait for it for 30 s only."""
    slow = hook(tmp_path, "trainer.distributed.initialize", SLOW_COMPILER, "time.sleep(35)")
    env = {1: {"PYTHONPATH": str(slow)}}
    ended = gang.wait(tmp_path, gang.start(job_of(steps=2), world_of(2, 1), tmp_path, host_env=env))
    assert ended.codes == [0, 0], "\n".join(ended.outputs)


@pytest.mark.slow
def test_two_processes_train_together_and_report_events(tmp_path):
    ended = gang.run(job_of(steps=2), world_of(2, 2), tmp_path)
    assert ended.codes == [0, 0], "\n".join(ended.outputs)
    for process in range(2):
        events = [event for event in ended.events if event["process"] == process]
        # On a slow machine the data takes long enough to tell of its progress.
        names = [event["event"] for event in events]
        first_seen = [n for n in dict.fromkeys(names) if n not in ("heartbeat", "progress")]
        assert first_seen == ["started", "phase", "initialized", "compiled", "step", "finished"]
        phases = [event["name"] for event in events if event.get("edge") == "begin"]
        assert phases == ["data", "compile", "train"]
        assert [event["step"] for event in events if event["event"] == "step"] == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "devices"), sampled({"1-8": (1, 8), "2-2": (2, 2), "4-1": (4, 1)}, ["2-2"])
)
def test_a_wide_model_comes_to_its_end(tmp_path, processes, devices):
    """Wide enough that operations run side by side, on more devices than there are cores."""
    model = {"layers": 2, "d_model": 256, "heads": 4, "kv_heads": 2, "d_ff": 768}
    job = job_of(steps=2, model=model, data={"seq_len": 256, "global_batch": 16})
    ended = gang.run(job, world_of(processes, devices), tmp_path)
    assert ended.codes == [0] * processes, "\n".join(ended.outputs)
