"""`launch up` and `launch down`: what a name means, what is asked, and two commands at once."""

import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from launcher.commands import clusters, down
from launcher.commands.clusters import keep_warm
from launcher.core.errors import HostError, JobError
from launcher.core.exit_codes import BAD_USAGE, INTERRUPTED, NO_CLUSTER, OK
from launcher.executors.local_run import LocalRunHandle
from launcher.providers.gcp import pod, slice_records
from launcher.providers.gcp.pod import TpuSliceRequest
from launcher.providers.gcp.request import cluster_label
from launcher.providers.local import provider, warm
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.exits import exit_code
from tests.support.run_folders import make_run
from tests.support.tpu_slices import MemoryApi, cluster_file, ended, make_pod
from tests.support.warm_clusters import SETTINGS, hosts

__all__ = ["hosts"]

WARM = "{accelerator: cpu, hosts: 2, devices_per_host: 1, provider: {kind: local}}"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryApi:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(pod, "POLL_INTERVAL_S", 0.001)
    found = MemoryApi()
    monkeypatch.setattr(pod, "Api", found.at)
    return found


def held_pod(api: MemoryApi, folder: Path, *, project: str = "mine") -> TpuSliceRequest:
    """FOLDER/pod.yaml, and its slices, which the API has shown."""
    file = cluster_file(folder, project=project)
    found = make_pod(file, folder / "runs" / folder.name, is_seen=True)
    api.held[found.note.resource_id] = ""
    return found


def on_terminal(monkeypatch: pytest.MonkeyPatch, answer: bool) -> None:
    monkeypatch.setattr(clusters.sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(clusters.Confirm, "ask", lambda *given, **named: answer)


def end(given: str, *, agreed: bool) -> int:
    return exit_code(lambda: clusters.end(given, agreed=agreed, as_json=False))


def test_down_deletes_slices_of_own_cluster_file_not_of_namesake(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = (held_pod(api, tmp_path / name) for name in ("alice", "bob"))
    monkeypatch.chdir(tmp_path / "bob")
    assert end("pod.yaml", agreed=True) == OK
    assert api.deleted == [bob.note.resource_id]
    assert list(api.held) == [alice.note.resource_id]


def test_a_file_in_clusters_of_another_project_is_another_cluster(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alice", "bob"):
        held_pod(api, tmp_path / name / "clusters")
    monkeypatch.chdir(tmp_path / "bob")
    assert end("pod", agreed=True) == OK
    assert len(api.deleted) == 1 and len(api.held) == 1


def test_without_a_terminal_down_deletes_nothing_and_lists_run_and_folder(
    api: MemoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = held_pod(api, tmp_path / "alice")
    assert end(str(tmp_path / "alice" / "pod.yaml"), agreed=False) == BAD_USAGE
    said = capsys.readouterr().err
    assert held.note.resource_id in said and str(tmp_path / "alice/runs/alice") in said
    assert "v4-16 (on demand) in us-central2-b, project mine" in said
    assert "nothing was ended: pass --yes, or run this command on a terminal" in said
    assert not api.deleted and slice_records.is_recorded(held.folder)


@pytest.mark.parametrize(("answer", "code"), [(False, INTERRUPTED), (True, OK)])
def test_on_a_terminal_the_answer_decides(
    answer: bool, code: int, api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_pod(api, tmp_path)
    on_terminal(monkeypatch, answer)
    assert end(str(tmp_path / "pod.yaml"), agreed=False) == code
    assert len(api.deleted) == answer


def test_an_unreadable_note_is_named_and_keeps_no_other_slices(
    api: MemoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn, whole = held_pod(api, tmp_path / "alice"), held_pod(api, tmp_path / "bob")
    (torn.folder / slice_records.STATE).write_text("")
    assert end(str(tmp_path / "bob" / "pod.yaml"), agreed=True) == OK
    assert api.deleted == [whole.note.resource_id]
    said = capsys.readouterr().err.replace("\n", " ")
    assert "state.json cannot be read: it is empty: skipped" in said
    assert f"launch down {torn.folder.name} gives its slices back" in said
    assert end("local", agreed=True) == OK


@pytest.mark.parametrize("where", ["{}", ""])
def test_slices_of_an_unreadable_note_are_given_back_by_their_name(
    where: str, api: MemoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = held_pod(api, tmp_path)
    (torn.folder / slice_records.STATE).write_text("{}")
    (torn.folder / slice_records.WHERE).write_text(where)
    assert end(torn.folder.name, agreed=True) == NO_CLUSTER
    assert "gcloud compute tpus queued-resources delete" in capsys.readouterr().err
    (torn.folder / slice_records.WHERE).write_text('{"project": "mine", "zone": "z", "newer": 1}')
    assert end(torn.folder.name, agreed=True) == OK
    assert api.deleted == [torn.folder.name]


def test_slices_without_a_note_are_found_by_their_label(
    api: MemoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = cluster_file(tmp_path)
    api.held = {"slipway-lost-1": cluster_label(str(file)), "slipway-other-1": "colleague"}
    assert end(str(file), agreed=False) == BAD_USAGE
    assert "slipway-lost-1: asked for with this cluster" in capsys.readouterr().err
    assert end(str(file), agreed=True) == OK
    assert api.deleted == ["slipway-lost-1"]


def test_slices_in_project_no_longer_in_file_stay_and_are_named(
    api: MemoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = held_pod(api, tmp_path, project="first")
    cluster_file(tmp_path, project="second")
    assert end(str(tmp_path / "pod.yaml"), agreed=True) == OK
    said = " ".join(capsys.readouterr().err.split())
    assert "is in us-central2-b, project first, and" in said
    assert f"launch down {held.note.resource_id} gives it back" in said
    assert not api.deleted
    assert end(held.note.resource_id, agreed=True) == OK
    assert api.deleted == [held.note.resource_id]


def test_slices_of_a_cluster_file_that_is_gone_are_given_back_by_its_path(
    api: MemoryApi, tmp_path: Path
) -> None:
    held = held_pod(api, tmp_path)
    (tmp_path / "pod.yaml").unlink()
    assert end(str(tmp_path / "pod.yaml"), agreed=True) == OK
    assert api.deleted == [held.note.resource_id]


def test_one_pod_that_cannot_be_given_back_keeps_no_other(
    api: MemoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held_pod(api, tmp_path)
    second = held_pod(api, tmp_path)
    api.failures = 1
    assert end(str(tmp_path / "pod.yaml"), agreed=True) == NO_CLUSTER
    assert api.deleted == [second.note.resource_id]
    assert "ServiceUnavailable" in capsys.readouterr().err


def test_slices_that_the_api_has_not_shown_are_left_to_a_keeper(
    api: MemoryApi,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept: list[Path] = []
    monkeypatch.setattr(down, "start_keeper", kept.append)
    asked = make_pod(cluster_file(tmp_path), tmp_path / "runs" / "small")
    assert end(str(tmp_path / "pod.yaml"), agreed=True) == OK
    assert (
        kept == [asked.folder] and not asked.is_wanted and slice_records.is_recorded(asked.folder)
    )
    assert "keep the machine running until then" in " ".join(capsys.readouterr().out.split())


def test_down_of_absent_cluster_lists_held_ones(
    api: MemoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = held_pod(api, tmp_path)
    assert end("local", agreed=False) == OK
    said = capsys.readouterr()
    assert "local was not up" in said.out and held.note.resource_id in said.err


def test_down_of_unknown_cluster_is_refused_and_lists_held_ones(
    api: MemoryApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = held_pod(api, tmp_path)
    assert end("lokal", agreed=True) == 2
    said = capsys.readouterr()
    assert "lokal" in said.err and held.note.resource_id in said.err


def test_two_ups_at_once_start_one_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: OwnedCluster
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "two.yaml"
    file.write_text(WARM)
    started, both = [], threading.Barrier(2)

    def start(world: object, settings: object) -> OwnedCluster:
        started.append(world)
        threading.Event().wait(0.2)
        return hosts

    monkeypatch.setattr(provider, "start", start)
    codes: list[int] = []

    def up() -> None:
        both.wait()
        codes.append(exit_code(lambda: keep_warm(str(file), None, as_json=False)))

    monkeypatch.setattr(clusters, "ending_on_signals", nullcontext)
    threads = [threading.Thread(target=up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert codes == [OK, OK] and len(started) == 1
    assert end(str(file), agreed=False) == OK
    assert not warm.is_up("two")


def test_a_command_that_holds_the_cluster_for_too_long_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(warm, "LOCKED_TIMEOUT_S", 0.0)
    with (
        warm.locked("pod"),
        pytest.raises(HostError, match="another `launch up` or `launch down` of pod"),
        warm.locked("pod"),
    ):
        pass


def test_a_warm_cluster_with_a_live_run_is_not_ended_without_an_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hosts: OwnedCluster,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    stopped: list[Path] = []
    with make_run(tmp_path) as run:
        warm.keep("pod", SETTINGS, hosts)
        with warm.use("pod", run.folder):
            assert end("pod", agreed=False) == BAD_USAGE
            assert str(run.folder) in capsys.readouterr().err.replace("\n", "")
            assert warm.is_up("pod")

            def stop(handle: LocalRunHandle) -> None:
                assert warm.is_up("pod")
                stopped.append(handle.folder)
                run.close()

            monkeypatch.setattr(LocalRunHandle, "stop", stop)
            assert end("pod", agreed=True) == OK
    assert stopped == [run.folder] and not warm.is_up("pod")


def test_a_run_that_does_not_stop_keeps_its_warm_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: OwnedCluster
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def stop(handle: LocalRunHandle) -> None:
        raise JobError(f"{handle.folder} still runs")

    monkeypatch.setattr(LocalRunHandle, "stop", stop)
    with make_run(tmp_path) as run:
        warm.keep("pod", SETTINGS, hosts)
        with warm.use("pod", run.folder):
            assert end("pod", agreed=True) == NO_CLUSTER
    assert warm.is_up("pod")
    assert end("pod", agreed=False) == OK, "a run that is over needs no answer"


def test_a_killed_run_uses_its_warm_cluster_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    program = (
        "import pathlib; from launcher.providers.local import warm;"
        f"held = warm.use('pod', pathlib.Path({str(tmp_path)!r})); print('held', flush=True);"
        "input()"
    )
    using = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert using.stdout and using.stdout.readline() == b"held\n"
    assert warm.users("pod") == [tmp_path]
    using.kill()
    using.communicate()
    assert warm.users("pod") == []


def test_down_by_path_ends_no_warm_cluster_of_another_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: OwnedCluster
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    warm.keep("pod", SETTINGS, hosts, str(tmp_path / "pod.yaml"))
    assert end(str(tmp_path / "other" / "pod.yaml"), agreed=True) == 2
    assert warm.is_up("pod")
    assert ended(lambda: end(str(tmp_path / "pod.yaml"), agreed=True))
    assert not warm.is_up("pod")
