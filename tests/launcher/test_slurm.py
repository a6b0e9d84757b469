"""What is asked of Slurm, and what is told where it is not; runs in a real one: tests/slurm."""

import json
from pathlib import Path

import pytest

from launcher.cluster import Cluster, Slurm, find_cluster
from launcher.exits import NO_CLUSTER
from launcher.providers.slurm.job import Queued, SlurmJob
from launcher.providers.slurm.submit import sbatch_words
from launcher.record.snapshot import take
from launcher.runs import QUEUED, Run, RunFolderError
from tests.leftovers import Traces, run_launcher

JOB_ID = "4711"


def words(accelerator: str, **settings: object) -> list[str]:
    provider = {"kind": "slurm", **settings}
    cluster = Cluster.model_validate({"accelerator": accelerator, "provider": provider})
    assert isinstance(cluster.provider, Slurm)
    world = cluster.world(simulated=False)
    return sbatch_words(Path("/shared/runs/small"), world, cluster.provider, 120.0, ["steps=7"])


def test_a_job_has_one_task_on_each_host_and_all_its_gpus() -> None:
    asked = words("h100-16")
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--requeue"} <= set(asked)
    assert "--exclusive" in asked
    assert asked[-1].endswith("launcher.providers.slurm.batch /shared/runs/small steps=7")


def test_it_is_told_before_its_time_is_over_with_time_left_to_save() -> None:
    assert "--signal=B:TERM@180" in words("h100-16", time_limit="1:00:00")


def test_what_the_cluster_file_says_is_passed_on() -> None:
    given = {"partition": "gpu", "account": "lab", "qos": "high", "time_limit": "2-0"}
    asked = words("h100-16", **given, options=["--constraint=a100"])
    named = {"--partition=gpu", "--account=lab", "--qos=high", "--time=2-0", "--constraint=a100"}
    assert named <= set(asked)
    assert "--exclusive" not in asked


@pytest.mark.parametrize(
    ("queued", "text"),
    [
        (Queued("PENDING", "Resources", "2026-01-02T03:04:05"),
         "queued (Resources, expected to start at 2026-01-02T03:04:05)"),
        (Queued("PENDING", "Priority", "N/A"), "queued (Priority)"),
        (Queued("PENDING", "None", "N/A"), "queued"),
        (Queued("RUNNING", "None", "2026-01-02T03:04:05"), "running"),
    ],
)  # fmt: skip
def test_how_a_job_stands_is_told_in_words(queued: Queued, text: str) -> None:
    assert str(queued) == text


def fake_squeue(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """A stand-in that knows one job."""
    squeue = folder / "squeue"
    squeue.write_text(f"#!/bin/sh\necho '{answer}'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def queued_run(folder: Path) -> Path:
    run = folder / "small"
    run.mkdir()
    (run / "job.yaml").write_text("name: small\n")
    (run / "state.json").write_text(json.dumps({"state": QUEUED}))
    SlurmJob(job_id=JOB_ID).write(run)
    return run


def test_a_run_that_waits_is_queued_and_is_not_begun_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queued_run(tmp_path)
    fake_squeue(tmp_path, monkeypatch, "PENDING|Priority|N/A")
    assert take(run).state == QUEUED
    with pytest.raises(RunFolderError, match=r"a job of Slurm's: queued \(Priority\)"):
        Run.open(run)


def test_a_run_whose_job_has_left_the_queue_without_a_word_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queued_run(tmp_path)
    fake_squeue(tmp_path, monkeypatch, "")
    assert take(run).state == "died"
    Run.open(run).close()


def test_where_slurm_is_not_the_command_says_so_and_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text('name: small\ncommand: ["true"]\n')
    cluster = "accelerator: cpu\nhosts: 2\ndevices_per_host: 1\nprovider: {kind: slurm}\n"
    (tmp_path / "slurm.yaml").write_text(cluster)
    monkeypatch.setenv("PATH", str(tmp_path))
    traces = Traces()
    told = run_launcher(tmp_path, traces.environment, "-c", "slurm.yaml", "job.yaml")
    traces.remove()
    assert told.returncode == NO_CLUSTER, told.stdout + told.stderr
    assert "sbatch is not on this machine: type the command where" in told.stderr
    assert not (tmp_path / "runs" / "small").exists()


def test_a_cluster_file_of_slurm_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gpus.yaml"
    path.write_text("accelerator: h100-16\nprovider: {kind: slurm, partition: gpu}\n")
    provider = find_cluster(str(path)).value.provider
    assert isinstance(provider, Slurm)
    assert provider.partition == "gpu"
