"""A resumed run gets only the variables that a launch on this machine named for it."""

import io
import json
import os
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from launcher.cluster.schema import Attach, Cluster, ClusterRef, Ssh, find_cluster
from launcher.core.exit_codes import BAD_USAGE
from launcher.core.states import RunState
from launcher.executors import new_secrets
from launcher.executors.options import LaunchOptions
from launcher.executors.remote_run import locate
from launcher.executors.ssh import RemoteSubmission, RunRequest
from launcher.providers.ray.host_protocol import RunOrder
from launcher.providers.ssh.provision import Provisioned
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.runs import registry
from launcher.runs.directory import RunDir
from launcher.runs.folder import REMOTE, RunFolderError
from tests.support.cli import launch
from tests.support.launch_plans import command_launch
from tests.support.run_archives import entry, packed
from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.config.loader import ConfigError, load
from trainer.contract.protocol.environment import RUN_ID

JOB = "{name: any, command: ['true'], secrets: [NAMED]}\n"
EVIL = "{name: any, command: ['true'], secrets: [NAMED, CLOUD_KEY]}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a job that names one secret."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("NAMED", "1")
    monkeypatch.setenv("CLOUD_KEY", "only-here")
    monkeypatch.chdir(tmp_path)
    made = command_launch(tmp_path, JOB)
    with RunDir.create(made) as run:
        run.set_state(RunState.INTERRUPTED)
    return made.run_dir


def job(*names: str) -> CommandJob:
    return CommandJob.model_validate({"name": "any", "command": ["true"], "secrets": names})


def run_on_head(folder: Path) -> RemoteRun:
    root = PurePosixPath("/")
    there = Provisioned(base=root, code=root, folder=root, python=root / "python", addresses=[])
    return RemoteRun(
        settings=Ssh(kind="ssh", hosts=["head"]),
        name="any",
        runs="/runs",
        environment=there,
        cluster_ref=ClusterRef(name="machines.yaml"),
        launched_in=str(folder.parents[1]),
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_resume_with_new_secret_is_refused_and_names_allowing_option(
    folder: Path,
) -> None:
    (folder / "job.yaml").write_text(EVIL)
    refused = launch(folder.parents[1], "resume", "any")
    assert refused.returncode == BAD_USAGE
    assert "secrets: CLOUD_KEY: no launch from this machine named it for this run" in refused.stderr
    assert """launch resume any 'secrets=["NAMED", "CLOUD_KEY"]'""" in refused.stderr
    assert not (folder / "plans" / "0002.json").exists()


def test_new_secret_of_a_notification_target_is_refused(folder: Path) -> None:
    target = "notify: [{url: 'https://127.0.0.1', token_secret: CLOUD_KEY}]"
    (folder / "job.yaml").write_text(JOB.replace("}", f", {target}}}"))
    refused = launch(folder.parents[1], "resume", "any")
    assert refused.returncode == BAD_USAGE
    assert "notify: CLOUD_KEY: no launch from this machine named it for this run" in refused.stderr
    named = '[{"url": "https://127.0.0.1", "token_secret": "CLOUD_KEY"}]'
    assert f"launch resume any 'notify={named}'" in refused.stderr
    job = load_job(folder / "job.yaml").value
    new_secrets.confirm(job, folder, [f"notify={named}"])
    with pytest.raises(ConfigError):
        new_secrets.confirm(job, folder, ["secrets=[NAMED]"])


def test_secrets_that_the_launch_named_are_not_asked_for(folder: Path) -> None:
    new_secrets.confirm(job("NAMED"), folder, [])


def test_secrets_that_the_command_itself_names_are_not_asked_for(folder: Path) -> None:
    new_secrets.confirm(job("CLOUD_KEY"), folder, ["secrets=[CLOUD_KEY]"])


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_new_secrets_are_confirmed_on_a_terminal(
    folder: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    if answer == "y":
        new_secrets.confirm(job("CLOUD_KEY"), folder, [])
        return
    with pytest.raises(ConfigError):
        new_secrets.confirm(job("CLOUD_KEY"), folder, [])


def test_the_question_is_on_standard_error_with_the_file_as_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a [bold] name" / ("long" * 40)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    new_secrets.confirm(job("CLOUD_KEY"), folder, [])
    printed = capsys.readouterr()
    assert (printed.out, str(folder / "job.yaml") in printed.err) == ("", True)


def test_what_was_agreed_to_is_recorded(folder: Path) -> None:
    with RunDir.open(folder) as run:
        run.begin(command_launch(folder.parents[1], EVIL))
    assert registry.secrets_of(folder) == ["NAMED", "CLOUD_KEY"]


def test_a_head_resumes_with_the_secrets_that_the_launching_machine_names(tmp_path: Path) -> None:
    work = RunOrder(
        job=None, overrides=["steps=3"], secret_names=["NAMED"], secrets={"NAMED": "1"},
        cluster=find_cluster("local").value, cluster_name="c", runs="/runs", name="any", run_id="5",
    )  # fmt: skip
    provider = Attach(kind="attach")
    arguments = work.arguments(tmp_path, provider)
    assert load(tmp_path / "c.yaml", Cluster).value.provider == provider
    assert arguments[:4] == ["resume", "any", "steps=3", 'secrets=["NAMED"]']
    assert work.environment == {"NAMED": "1", RUN_ID: "5"}


def test_the_job_that_was_sent_is_recorded_here_with_its_secrets(folder: Path) -> None:
    cluster = find_cluster("local").value
    remotely = RemoteSubmission(folder, cluster, "c", ClusterRef(name="c"), LaunchOptions())
    remotely.record(RunRequest(job("NEW"), None))
    assert load_job(folder / "job.yaml").value.secrets == ("NEW",)
    assert registry.secrets_of(folder) == ["NEW"]


HEAD = """#!/bin/sh
case "$*" in *" status "*) echo '{"alive": false}' ;; *) cat %s ;; esac
"""


def remote_run(folder: Path, state: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`folder` is the copy of a run on a head whose folder names one more secret."""
    archive, ssh = folder.parents[1] / "archive", folder.parents[1] / "bin" / "ssh"
    files = {"job.yaml": EVIL, "run_id": "another", "state.json": json.dumps(state)}
    archive.write_bytes(packed(*(entry(f"./{name}", text) for name, text in files.items())))
    ssh.parent.mkdir()
    ssh.write_text(HEAD % archive)
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    run_on_head(folder).write(folder)


def test_fetched_run_keeps_job_and_id_written_on_this_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "run_id").read_text()
    remote_run(folder, {"state": "stopped", "step": 7}, monkeypatch)
    assert locate(folder) is None
    assert load_job(folder / "job.yaml").value.secrets == ("NAMED",)
    assert (folder / "run_id").read_text() == before


def test_a_torn_record_of_a_remote_run_is_an_error_that_names_the_file(folder: Path) -> None:
    (folder / REMOTE).write_text("")
    with pytest.raises(RunFolderError, match=r"remote\.json cannot be read"):
        locate(folder)


def test_fetched_state_has_no_process_cluster_or_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evil = {"pid": 1, "start_time": 1, "launched_in": "/evil", "cluster": {"name": "evil.yaml"}}
    remote_run(folder, {"state": "stopped", "step": 7, **evil}, monkeypatch)
    assert locate(folder) is None
    state = json.loads((folder / "state.json").read_text())
    assert state == {
        "state": "stopped", "step": 7, "launched_in": str(folder.parents[1]),
        "cluster": ClusterRef(name="machines.yaml").model_dump(),
    }  # fmt: skip
