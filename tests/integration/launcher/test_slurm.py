"""What is asked of Slurm, and what is told where it is not; runs in a real one: tests/slurm."""

import json
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launcher.cli.app import app
from launcher.cluster.schema import Cluster, Slurm, find_cluster
from launcher.core import files, wait
from launcher.core.errors import HostError
from launcher.core.exit_codes import NO_CLUSTER, OK
from launcher.core.states import RunState
from launcher.executors.options import LaunchOptions
from launcher.executors.registry import executor_for
from launcher.planning.command import CommandLaunch
from launcher.providers.slurm import job_entrypoint, job_environment
from launcher.providers.slurm import submit as submitting
from launcher.providers.slurm.submit import sbatch_command
from launcher.runs import slurm_job
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError
from launcher.runs.slurm_job import Queued, SlurmJob
from launcher.runs.status import read_status
from tests.support.assert_no_leftovers import Traces
from tests.support.exits import exit_code
from tests.support.launch_plans import COMMAND_JOB, command_launch
from tests.support.processes import run_launcher
from trainer.contract.protocol.environment import SLURM_JOB

JOB_ID, NAME = "4711", "small-1a2b3c4d"


def words(accelerator: str, *, priority: int = 0, **settings: Any) -> list[str]:
    provider = {"kind": "slurm", **settings}
    cluster = Cluster.model_validate({"accelerator": accelerator, "provider": provider})
    assert isinstance(cluster.provider, Slurm)
    world = cluster.world(simulated=False)
    folder = Path("/shared/runs/small")
    return sbatch_command(NAME, folder, world, cluster.provider, 120.0, priority, ["steps=7"])


@pytest.mark.parametrize(("priority", "nice"), [(-100, "--nice=100"), (5, "--nice=-5"), (0, "")])
def test_the_priority_of_a_job_is_passed_on_as_its_nice_value(priority: int, nice: str) -> None:
    assert [word for word in words("h100-16", priority=priority) if "--nice" in word] == [
        nice
    ] * bool(nice)


def test_a_job_has_one_task_on_each_host_and_all_its_gpus() -> None:
    asked = words("h100-16")
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8"} <= set(asked)
    assert "--exclusive" in asked
    command = f"launcher.providers.slurm.job_entrypoint {NAME} /shared/runs/small steps=7"
    assert asked[-1].endswith(command)


def test_a_job_that_loses_a_host_is_put_back_into_the_queue() -> None:
    assert "--requeue" in words("h100-16")


def test_job_gets_notice_before_time_limit_with_time_to_save() -> None:
    assert "--signal=B:TERM@180" in words("h100-16", time_limit="1:00:00")


def test_what_the_cluster_file_says_is_passed_on() -> None:
    given: dict[str, Any] = {
        "partition": "gpu",
        "account": "lab",
        "qos": "high",
        "time_limit": "2-0",
    }
    asked = words("h100-16", **given, sbatch_args=["--constraint=a100"])
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
def test_job_state_is_described_in_words(queued: Queued, text: str) -> None:
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
    (run / "state.json").write_text(json.dumps({"state": "queued"}))
    SlurmJob(name=NAME, job_id=JOB_ID).write(run)
    return run


def test_a_run_that_waits_is_queued_and_is_not_begun_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queued_run(tmp_path)
    fake_squeue(tmp_path, monkeypatch, "PENDING|Priority|N/A")
    assert read_status(run).state is RunState.QUEUED
    with pytest.raises(RunFolderError, match=r"a job of Slurm's: queued \(Priority\)"):
        RunDir.open(run)


def test_a_run_whose_job_has_left_the_queue_without_a_word_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queued_run(tmp_path)
    fake_squeue(tmp_path, monkeypatch, "")
    assert read_status(run).state is RunState.LOST
    RunDir.open(run).close()


def test_where_slurm_is_not_the_command_says_so_and_leaves_no_run(
    tmp_path: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text('name: small\ncommand: ["true"]\n')
    cluster = "accelerator: cpu\nhosts: 2\ndevices_per_host: 1\nprovider: {kind: slurm}\n"
    (tmp_path / "slurm.yaml").write_text(cluster)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = run_launcher(tmp_path, traces.environment, "-c", "slurm.yaml", "job.yaml")
    assert told.returncode == NO_CLUSTER, told.stdout + told.stderr
    assert "sbatch is not on this machine: type the command where" in told.stderr
    assert not (tmp_path / "runs" / "small").exists()


def test_a_cluster_file_of_slurm_is_read(tmp_path: Path) -> None:
    path = tmp_path / "gpus.yaml"
    path.write_text("accelerator: h100-16\nprovider: {kind: slurm, partition: gpu}\n")
    provider = find_cluster(str(path)).value.provider
    assert isinstance(provider, Slurm)
    assert provider.partition == "gpu"


class Queue:
    """Played commands of Slurm: `sbatch` and `squeue` as a busy controller lets them answer."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "slurm"
        self.folder.mkdir()
        self.write("squeue", 'cat "$QUEUE" 2>/dev/null; exit 0')
        self.write("scancel", 'echo "$@" >> $FOLDER/cancelled')
        monkeypatch.setenv("PATH", f"{self.folder}:{os.environ['PATH']}")
        monkeypatch.setattr(submitting, "POLL_INTERVAL_S", 0.01)

    def sbatch(self, *lines: str) -> None:
        self.write("sbatch", 'env > $FOLDER/environment; echo "$@" > $FOLDER/words', *lines)

    def write(self, name: str, *lines: str) -> None:
        path, head = self.folder / name, ["#!/bin/bash", f"FOLDER={self.folder}", "QUEUE=$FOLDER/q"]
        path.write_text("\n".join([*head, *lines]) + "\n")
        path.chmod(0o755)


ACCEPTS = 'echo "PENDING|Priority|N/A|4711" > "$QUEUE"'
LOSES_THE_ANSWER = (
    "echo 'sbatch: error: Socket timed out on send/recv operation' >&2",
    "exit 1",
)


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return Queue(tmp_path, monkeypatch)


def slurm_launch(folder: Path, job: str = COMMAND_JOB) -> CommandLaunch:
    text = "accelerator: cpu\nhosts: 2\ndevices_per_host: 1\nprovider: {kind: slurm}\n"
    (folder / "slurm.yaml").write_text(text)
    return command_launch(folder, job, str(folder / "slurm.yaml"))


def hand_over(launch: CommandLaunch) -> None:
    executor_for(launch.cluster, simulated=False).submit(launch, LaunchOptions(detach=True))


@pytest.mark.parametrize("answer", ["late", "lost"])
def test_a_job_that_sbatch_does_not_confirm_is_found_in_the_queue(
    answer: str, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = ("exec sleep 60",)
    queue.sbatch(ACCEPTS, *(late if answer == "late" else LOSES_THE_ANSWER))
    monkeypatch.setattr(slurm_job, "COMMAND_TIMEOUT_S", 1.0)
    launch = slurm_launch(tmp_path)
    hand_over(launch)
    noted = SlurmJob.read(launch.run_dir)
    assert noted is not None
    assert noted.job_id == JOB_ID
    assert f"--job-name={noted.name}" in (queue.folder / "words").read_text()


def test_a_job_that_may_come_yet_stays_recorded_and_is_stopped_by_its_name(
    queue: Queue,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    queue.sbatch(*LOSES_THE_ANSWER)
    monkeypatch.setattr(submitting, "FIND_TIMEOUT_S", 0.05)
    launch = slurm_launch(tmp_path)
    assert exit_code(lambda: hand_over(launch)) == NO_CLUSTER
    said = capsys.readouterr().err
    assert "Socket timed out" in said
    assert "Do without the job: launch stop any" in said
    noted = SlurmJob.read(launch.run_dir)
    assert noted is not None
    assert f"may have accepted the job {noted.name}" in said
    stopped = CliRunner().invoke(app, ["stop", "any"])
    assert stopped.exit_code == OK, stopped.output
    assert (queue.folder / "cancelled").read_text() == f"--name={noted.name}\n"
    after = SlurmJob.read(launch.run_dir)
    assert after is not None
    assert after.is_to_end
    assert read_status(launch.run_dir).state == "stopped"


@pytest.mark.parametrize("since", ["stopped", "handed over again", "moved aside"])
def test_a_job_that_comes_too_late_runs_nothing(
    since: str, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queued_run(tmp_path)
    if since == "stopped":
        SlurmJob(name=NAME, is_to_end=True).write(run)
    elif since == "handed over again":
        SlurmJob(name="small-5e6f7a8b").write(run)
    else:
        SlurmJob(name=NAME).forget(run)
    monkeypatch.setenv("SLURM_JOB_ID", JOB_ID)
    monkeypatch.setattr(sys, "argv", ["batch", NAME, str(run)])
    before = sorted(path.name for path in run.iterdir())
    assert job_entrypoint.main() == OK
    assert sorted(path.name for path in run.iterdir()) == before, "`launch` was not called"


def test_a_refused_job_leaves_no_run(queue: Queue, tmp_path: Path) -> None:
    queue.sbatch("echo 'sbatch: error: invalid partition specified: absent' >&2", "exit 1")
    launch = slurm_launch(tmp_path)
    with pytest.raises(HostError, match="invalid partition"):
        hand_over(launch)
    assert not launch.run_dir.exists()
    assert list(launch.run_dir.parent.iterdir()) == []


def test_secrets_do_not_go_to_slurms_controller_and_the_job_finds_them(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.sbatch(ACCEPTS, "echo 4711")
    values = {"MY_LOGIN": "3141", "HF_TOKEN": "2718", "AWS_SECRET_ACCESS_KEY": "1618"}
    for name, value in {**values, "PLAIN": "1414"}.items():
        monkeypatch.setenv(name, value)
    launch = slurm_launch(tmp_path, COMMAND_JOB + "secrets: [MY_LOGIN]\n")
    hand_over(launch)
    sent = (queue.folder / "environment").read_text().splitlines()
    assert "PLAIN=1414" in sent
    assert [line for line in sent if line.partition("=")[0] in values] == []
    kept = launch.run_dir / job_environment.FILE
    assert job_environment.read(launch.run_dir) == {"MY_LOGIN": "3141"}
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_secrets_are_deleted_when_the_job_is_taken_out_of_the_queue(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.sbatch(ACCEPTS, "echo 4711")
    monkeypatch.setenv("MY_LOGIN", "3141")
    launch = slurm_launch(tmp_path, COMMAND_JOB + "secrets: [MY_LOGIN]\n")
    hand_over(launch)
    queue.write("scancel", 'rm "$QUEUE"')
    assert CliRunner().invoke(app, ["stop", "any"]).exit_code == OK
    assert not (launch.run_dir / job_environment.FILE).exists()


def test_a_requeued_job_waits_for_the_lock_of_a_dead_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = queued_run(tmp_path)
    monkeypatch.setenv(SLURM_JOB, NAME)
    monkeypatch.setattr(files, "LOCK_TIMEOUT_S", 0.0)
    held = (run / "events.jsonl").open("a")
    assert files.lock(held)
    waits = threading.Event()
    monkeypatch.setattr(wait.time, "sleep", lambda seconds: waits.set())
    threading.Thread(target=lambda: waits.wait(60) and held.close()).start()
    RunDir.open(run).close()
    assert waits.is_set()
