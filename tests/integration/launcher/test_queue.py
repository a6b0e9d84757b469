"""`launch --queue`: what is refused, what an entry keeps, and that each run begins once."""

import json
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cluster.schema import ClusterRef
from launcher.core.files import is_locked
from launcher.core.states import RunState
from launcher.executors.driver import DriverOrder
from launcher.executors.enqueue import add_run
from launcher.queue.folder import Queue, QueueError, queue_name, queue_of, queues
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError
from launcher.runs.status import read_status
from tests.support import queue_stubs
from tests.support.cli import launch
from tests.support.launch_plans import COMMAND_JOB, JOB, command_launch
from tests.support.notices import outcomes
from tests.support.processes import wait_until
from tests.support.queue_stubs import kill_worker
from tests.support.run_folders import make_run
from tests.support.webhooks import webhook_server
from trainer.contract.config.command import CommandJob

PRICED = "{accelerator: v4-8, provider: {kind: local, price_per_chip_hour: 2}}"
ELASTIC = (
    "{accelerator: cpu, hosts: {min: 1, max: 2}, devices_per_host: 1, provider: {kind: local}}"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with job files, in which commands run; its queues are its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "any.yaml").write_text(COMMAND_JOB)
    yield tmp_path
    for queue in queues():
        kill_worker(queue)


@pytest.fixture
def busy(folder: Path) -> Iterator[RunDir]:
    """A run that was started without the queue, and uses the cluster."""
    with make_run(folder, "busy") as run:
        run.set_state(RunState.RUNNING)
        yield run


def add(folder: Path, name: str, **fields: object) -> tuple[Queue, Path]:
    """Adds a run to the queue of `local`, which no worker serves."""
    spec = command_launch(folder)
    job = CommandJob.model_validate({**spec.job.model_dump(), "name": name, **fields})
    run_dir = folder / "runs" / name
    return add_run(replace(spec, job=job, run_dir=run_dir)), run_dir


def listed(folder: Path) -> dict[str, dict]:
    result = launch(folder, "list", "-o", "json")
    assert result.returncode == 0, result.stderr
    return {run["name"]: run for run in json.loads(result.stdout)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.yaml"], "absent.yaml: no such file"),
        (["job.yaml", "stpes=4"], "override stpes=4: unknown key. Did you mean 'steps'?"),
        (["job.yaml", "priority=high"], "override priority=high: expected a whole number"),
        (["job.yaml", "-c", "missing.yaml"], "missing.yaml: no such file"),
        (["job.yaml", "-c", "lcoal"], "--cluster lcoal: unknown cluster"),
        (["job.yaml", "checkpoint=null", "preemptible=true"],
         "override preemptible=true: true requires checkpoints, found checkpoint: null"),
        (["any.yaml", "secrets=[A_MISSING_ONE]"], "A_MISSING_ONE is not set"),
    ],
)  # fmt: skip
def test_bad_input_is_explained_and_nothing_is_queued(
    folder: Path, words: list[str], message: str
) -> None:
    result = launch(folder, *words, "--queue")
    assert result.returncode == 2
    assert message in result.stderr
    assert not (folder / "runs").exists() and queues() == []


def test_hosts_that_drive_their_runs_have_no_queue(folder: Path) -> None:
    hosts = "provider: {kind: ssh, hosts: [10.0.0.1]}"
    (folder / "ssh.yaml").write_text(f"accelerator: h100-8\nstorage: /shared\n{hosts}\n")
    result = launch(folder, "any.yaml", "-c", "ssh.yaml", "--queue")
    assert result.returncode == 2
    assert "a host of this cluster drives its runs" in result.stderr
    assert not (folder / "runs").exists()


def test_a_queued_run_is_listed_and_leaves_when_it_is_stopped(folder: Path, busy: RunDir) -> None:
    for name, priority in (("low", 0), ("high", 5)):
        words = ("any.yaml", f"name={name}", f"priority={priority}", "--queue")
        queued = launch(folder, *words)
        assert queued.returncode == 0, queued.stderr
        assert f"{name} waits in the queue of local: position 1" in queued.stdout
    found = listed(folder)
    assert found["low"]["queue"] == {"position": 2, "priority": 0}
    assert (found["high"]["state"], found["high"]["alive"]) == ("queued", False)
    assert found["busy"]["queue"] is None
    assert "position 1, priority 5" in launch(folder, "list").stdout
    shown = launch(folder, "status", "low").stdout
    assert "position 2, priority 0" in shown and "follow it with: launch attach low" in shown
    stopped = launch(folder, "stop", "high")
    assert stopped.returncode == 0, stopped.stderr
    assert "high is removed from the queue" in stopped.stdout
    found = listed(folder)
    assert found["high"]["state"] == "stopped" and found["high"]["queue"] is None
    assert found["low"]["queue"]["position"] == 1


def test_a_stopped_run_can_be_queued_again(folder: Path, busy: RunDir) -> None:
    _, run = add(folder, "any")
    assert launch(folder, "stop", "any").returncode == 0
    queued = launch(folder, "resume", "any", "--queue", "priority=3")
    assert queued.returncode == 0, queued.stderr
    assert "any waits in the queue of local: position 1, priority 3" in queued.stdout
    assert read_status(run).state is RunState.QUEUED


def test_a_name_is_taken_while_its_run_waits(folder: Path) -> None:
    _, run = add(folder, "any")
    for words in (["--queue"], ["--queue", "--fresh"], ["--detach", "--fresh"]):
        refused = launch(folder, "any.yaml", *words)
        assert refused.returncode == 2
        assert ("in a queue" in refused.stderr) == ("--fresh" in words)
    assert queue_of(run) and read_status(run).state is RunState.QUEUED


def test_a_run_starts_when_the_one_outside_of_the_queue_has_ended(
    folder: Path, busy: RunDir
) -> None:
    queue, run = add(folder, "any")
    queue.start_worker(queue_stubs.MODULE)
    wait_until(lambda: is_locked(queue.folder / "worker"))
    assert read_status(run).state is RunState.QUEUED
    busy.close()
    wait_until(lambda: read_status(run).state is RunState.FINISHED)


def test_a_run_that_cannot_start_fails_and_the_next_one_starts(folder: Path) -> None:
    queue, bad = add(folder, "bad", priority=1)
    _, good = add(folder, "good")
    (bad / "job.yaml").write_text("name: bad\n")
    queue.start_worker(queue_stubs.MODULE)
    wait_until(lambda: queue.entries() == [])
    found = read_status(bad)
    assert found.state is RunState.FAILED and "job.yaml" in str(found.recorded.reason)
    assert read_status(good).state is RunState.FINISHED


def test_a_run_that_the_queue_cannot_start_is_notified(folder: Path) -> None:
    with webhook_server() as hooks:
        targets = f"[{{url: '{hooks.url}', events: [failed]}}]"
        queue, bad = add(folder, "bad")
        (bad / "job.yaml").write_text(
            f"{{name: bad, command: ['true'], secrets: [A_MISSING_ONE], notify: {targets}}}"
        )
        queue.start_worker(queue_stubs.MODULE)
        wait_until(hooks.events)
        wait_until(lambda: outcomes(bad))
    assert outcomes(bad) == [("failed", "sent")]
    (notice,) = hooks.delivered
    assert "secrets: A_MISSING_ONE: no launch from this machine" in notice.json["message"]


def test_a_resumed_run_has_the_forecast_of_a_new_one(folder: Path) -> None:
    (folder / "one.yaml").write_text(PRICED)
    queue = Queue.create(queue_name(ClusterRef(name="one.yaml"), folder))
    with queue.serving():  # no worker starts the run
        new = launch(folder, "job.yaml", "-c", "one.yaml", "--queue")
        assert launch(folder, "stop", "small").returncode == 0
        again = launch(folder, "resume", "small", "--queue")
    assert (new.returncode, again.returncode) == (0, 0), new.stderr + again.stderr
    assert again.stdout == new.stdout
    assert "small on one: 1 host x 4 devices of v4-8" in new.stdout
    assert "2 steps take at least" in new.stdout and "$0.00" in new.stdout
    assert "position 1, priority 0" in new.stdout


@pytest.mark.parametrize(
    ("text", "sizes", "is_elastic"),
    [
        ("job.yaml", [1, 2], True),
        ("job.yaml checkpoint=null", [1, 2], False),
        ("job.yaml mesh.tensor=2", [2], False),
        ("job.yaml --simulate-hosts 2", [], False),
        ("any.yaml", [1, 2], False),
    ],
)
def test_an_entry_has_the_numbers_of_hosts_that_its_run_fits_on(
    folder: Path, text: str, sizes: list[int], is_elastic: bool
) -> None:
    (folder / "two.yaml").write_text(ELASTIC)
    simulated = ClusterRef(name="two.yaml", simulate="--simulate-hosts" in text)
    queue = Queue.create(queue_name(simulated, folder))
    with queue.serving():
        queued = launch(folder, *text.split(), "-c", "two.yaml", "--queue")
    assert queued.returncode == 0, queued.stderr
    (entry,) = queue.entries()
    assert (list(entry.sizes), entry.is_elastic) == (sizes, is_elastic)


def test_of_two_drivers_of_one_attempt_one_begins(folder: Path) -> None:
    """Two workers may start one run: the first one was killed before its driver had the run."""
    _, run = add(folder, "any")
    spec = replace(command_launch(folder), run_dir=run)
    order = DriverOrder(spec, is_new=False, before=read_status(run).recorded)
    with order.open() as begun:
        begun.set_state(RunState.FINISHED)
    with pytest.raises(RunFolderError, match="another command has started or stopped it since"):
        order.open()
    assert [path.name for path in (run / "plans").iterdir()] == ["0001.json"]


def test_a_run_is_started_with_the_variables_of_its_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("A_TOKEN", "ANOTHER_TOKEN", "A_SETTING"):
        monkeypatch.setenv(name, "value")
    queue, _ = add(folder, "any", secrets=["A_TOKEN"])
    (entry,) = queue.entries()
    variables = queue.environment(entry)
    assert variables["A_TOKEN"] == variables["A_SETTING"] == "value"
    assert "ANOTHER_TOKEN" not in variables
    assert stat.S_IMODE(queue.folder.stat().st_mode) == 0o700
    queue.remove(entry)
    assert not [path for path in queue.folder.iterdir() if "any" in path.name]


def test_entries_of_many_commands_have_different_times(folder: Path) -> None:
    queue = Queue.create("many")

    def add_some(first: int) -> None:
        for number in range(first, first + 10):
            queue.add(
                folder / str(number), priority=0, is_preemptible=False, grace_s=1.0, environment={}
            )

    threads = [threading.Thread(target=add_some, args=[10 * first]) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({entry.entered for entry in queue.entries()}) == 40


def test_an_entry_that_was_added_again_is_another_one(folder: Path) -> None:
    """The worker may have seen the end of a run that a command has queued again since."""
    queue, run = add(folder, "any")
    (before,) = queue.entries()
    fields = {"priority": 7, "is_preemptible": False, "grace_s": 1.0, "environment": {}}
    again = queue.add(run, **fields)
    queue.remove(before)
    assert not queue.update(before, is_started=True)
    assert queue.entries() == [again]


def test_a_damaged_entry_is_named_and_other_commands_go_on(folder: Path) -> None:
    queue, run = add(folder, "any")
    (path,) = queue.folder.glob("*.json")
    path.write_text("{}")
    with pytest.raises(QueueError, match=r"has no field `folder`.* remove the file"):
        queue.entries()
    result = launch(folder, "list")
    assert result.returncode == 0 and run.name in result.stdout
    assert "warning" in result.stderr and path.name in result.stderr


def test_clusters_of_one_name_in_two_projects_have_two_queues(tmp_path: Path) -> None:
    names = set()
    for project in ("first", "second"):
        (tmp_path / project / "clusters").mkdir(parents=True)
        (tmp_path / project / "clusters" / "pod.yaml").touch()
        by_path = ClusterRef(name="clusters/pod.yaml")
        assert queue_name(ClusterRef(name="pod"), tmp_path / project) == queue_name(
            by_path, tmp_path / project
        )
        names.add(queue_name(by_path, tmp_path / project))
    simulated = ClusterRef(name="clusters/pod.yaml", simulate=True)
    names.add(queue_name(simulated, tmp_path / "first"))
    assert len(names) == 3


def test_the_worker_ends_with_the_last_entry(folder: Path) -> None:
    queue, run = add(folder, "any")
    queue.start_worker(queue_stubs.MODULE)
    wait_until(lambda: read_status(run).state is RunState.FINISHED)
    pid = int((queue.folder / "worker").read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
