"""What a compromised head can write into a run's folder of this machine: nothing but what is shown.

Both ways in: the archive that `ssh` brings, and the one at the end of a job's log.
"""

import base64
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from launcher.cluster.schema import Ssh
from launcher.core.errors import HostError
from launcher.providers.ray_jobs.client import JobInfo, JobsApi
from launcher.providers.ray_jobs.entrypoint import BEGINS, FOLDER
from launcher.providers.ray_jobs.run_handle import Following
from launcher.providers.ssh.connection import Host, SshError
from launcher.runs import fetched_files
from tests.support.run_archives import entry, packed

Fetch = Callable[[bytes, Path], None]
HERE = {"job.yaml": "secrets: []", "remote.json": "{}", "run_id": "1", "metrics.jsonl": "old"}


def by_ssh(archive: bytes, folder: Path) -> None:
    (folder.parents[1] / "archive").write_bytes(archive)
    Host("head", Ssh(kind="ssh", hosts=["head"])).fetch("pack", folder, timeout_s=60.0)


class Job:
    """Answers as the Jobs API does about a job that has ended."""

    address = "http://head"

    def __init__(self, archive: bytes) -> None:
        self._archive = base64.b64encode(archive).decode()

    def job(self, name: str) -> JobInfo:
        return JobInfo("SUCCEEDED", driver_exit_code=0)

    def log(self, name: str) -> str:
        return f"{BEGINS}\n{FOLDER}{self._archive}\n"


def by_job(archive: bytes, folder: Path) -> None:
    following = Following(cast("JobsApi", Job(archive)), "job-1")
    following.until_over(lambda line: None)
    following.unpack(folder)


@pytest.fixture(params=[by_ssh, by_job])
def fetch(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Fetch:
    """Each way to fetch a run, with an `ssh` that prints what a head sends."""
    ssh = folder.parents[1] / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(f"#!/bin/sh\nexec cat {folder.parents[1]}/archive\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    return request.param


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder, as this machine made it."""
    folder = tmp_path / "runs" / "small"
    folder.mkdir(parents=True)
    for name, text in HERE.items():
        (folder / name).write_text(text)
    return folder


def special(name: str, kind: bytes, linkname: str = "") -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, "", type=kind, linkname=linkname)


def files(folder: Path) -> dict[str, str]:
    found = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_what_is_shown_of_a_run_is_copied(fetch: Fetch, folder: Path) -> None:
    names = [
        "events.jsonl", "metrics.jsonl", "samples.jsonl", "sample.txt", "state.json",
        "plans/0002.json", "logs/host-0000.log", "logs/launch.log", "tensorboard/events/a",
        "profile/host-0000/plugins/b", "wandb/offline-run-1-2/run.wandb",
    ]  # fmt: skip
    fetch(packed(*(entry(f"./{name}", name) for name in names)), folder)
    assert files(folder) == {**HERE, **{name: name for name in names}}


@pytest.mark.parametrize(
    "name",
    [
        "job.yaml", "./job.yaml", "logs/../job.yaml", "run_id", "remote.json", "kubernetes.json",
        "slurm.json", "model.py", "wandb/settings", "plans/0001.json/../../job.yaml",
        "checkpoints/8/about.json", "plans/a.json", ".hidden", "logs", "../metrics.jsonl",
        "logs/../../metrics.jsonl", "/tmp/metrics.jsonl",
    ],
)  # fmt: skip
def test_what_a_command_acts_on_stays_as_this_machine_wrote_it(
    fetch: Fetch, folder: Path, name: str
) -> None:
    before = files(folder.parent)
    fetch(packed(entry(name), entry("sample.txt", "good")), folder)
    assert files(folder.parent) == {**before, "small/sample.txt": "good"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("to", ["job.yaml", "../../outside", "/etc/passwd"])
def test_a_link_does_not_lead_a_file_elsewhere(
    fetch: Fetch, folder: Path, kind: bytes, to: str
) -> None:
    outside = folder.parents[1] / "outside"
    outside.mkdir()
    links = special("state.json", kind, to), special("logs", kind, str(outside))
    fetch(packed(*links, entry("state.json", "good"), entry("logs/a", "good")), folder)
    assert files(folder) == {**HERE, "state.json": "good", "logs/a": "good"}
    assert not list(outside.iterdir())


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_a_device_and_a_pipe_are_not_made(fetch: Fetch, folder: Path, kind: bytes) -> None:
    fetch(packed(special("logs/device", kind), special("state.json", kind)), folder)
    assert files(folder) == HERE


def test_a_file_gets_neither_the_mode_nor_the_owner_that_the_head_says(
    fetch: Fetch, folder: Path
) -> None:
    fetch(packed(entry("logs/program", mode=0o6777, uid=12345, gid=12345)), folder)
    made = (folder / "logs" / "program").stat()
    assert made.st_mode & 0o6022 == 0
    assert (made.st_uid, made.st_gid) == (os.geteuid(), os.getegid())


@pytest.mark.parametrize("limit", ["LARGEST_BYTES", "MOST_ENTRIES"])
def test_an_archive_beyond_a_limit_is_an_error(
    fetch: Fetch, folder: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetched_files, limit, 3)
    with pytest.raises((SshError, HostError), match="it has more than"):
        fetch(packed(*(entry(f"logs/{number}", "ab") for number in range(4))), folder)


def test_an_archive_that_is_cut_off_is_an_error(fetch: Fetch, folder: Path) -> None:
    noise = base64.b64encode(os.urandom(90_000)).decode()
    with pytest.raises((SshError, HostError)):
        fetch(packed(entry("logs/a", noise))[:50_000], folder)
