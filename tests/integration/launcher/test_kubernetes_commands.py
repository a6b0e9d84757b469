"""Commands for a cluster in Kubernetes: dry runs, and what a run has left there."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ruamel.yaml import YAML

from launcher.core.errors import HostError
from launcher.core.exit_codes import NO_CLUSTER
from launcher.core.states import RunState
from launcher.providers.kubernetes import cleanup
from launcher.runs.records import KubernetesRecord
from tests.support.assert_no_leftovers import Traces
from tests.support.kubernetes.crd import problems
from tests.support.kubernetes.requested import IMAGE, group_of
from tests.support.processes import run_launcher
from tests.support.run_folders import make_run

JOB = "{name: quick, command: [python, x.py]}"


def test_what_could_not_be_deleted_is_deleted_later_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [HostError("no answer"), HostError("no answer"), True]
    waits_s: list[float] = []

    def release(folder: Path) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, HostError):
            raise answer
        return answer

    monkeypatch.setattr(cleanup, "release", release)
    clock = SimpleNamespace(monotonic=time.monotonic, ctime=time.ctime, sleep=waits_s.append)
    monkeypatch.setattr(cleanup, "time", clock)
    (tmp_path / "logs").mkdir()
    assert cleanup.main(tmp_path) == 0
    assert waits_s == [1.0, 2.0]
    first, _, last = (tmp_path / "logs" / cleanup.LOG).read_text().splitlines()
    assert "tries again in 1 s: HostError: no answer" in first
    assert "deleted what the run had left" in last


def test_a_reaper_that_cannot_delete_gives_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release(folder: Path) -> bool:
        raise HostError("no answer")

    monkeypatch.setattr(cleanup, "release", release)
    monkeypatch.setattr(cleanup, "LONGEST_S", -1.0)
    assert cleanup.main(tmp_path) == 1


def left(project: Path, content: str) -> None:
    """A run that has ended, and has left something in Kubernetes."""
    with make_run(project) as run:
        run.set_state(RunState.FAILED, reason="no hosts")
    (run.folder / KubernetesRecord.FILE).write_text(content)


@pytest.mark.parametrize("content", ["", "{}", '{"name": "slip'])
def test_a_torn_note_ends_stop_with_a_message_that_says_what_to_look_for(
    project: Path, traces: Traces, content: str
) -> None:
    left(project, content)
    ended = run_launcher(project, traces.environment, "stop", "small")
    assert ended.returncode == NO_CLUSTER, ended.stderr
    assert "small/kubernetes.json cannot be read: " in ended.stderr
    assert "kubectl get rayclusters --all-namespaces" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("verb", [["status", "small"], ["list"]])
def test_leftover_ray_cluster_is_named_with_delete_command(
    project: Path, traces: Traces, verb: list[str]
) -> None:
    left(project, json.dumps({"name": "slipway-small-1", "namespace": "a", "context": None}))
    shown = run_launcher(project, {**traces.environment, "COLUMNS": "200"}, *verb).stdout
    assert "RayCluster slipway-small-1 in Kubernetes; delete it with: launch stop" in shown


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    (tmp_path / "job.yaml").write_text(JOB)
    provider = f"{{kind: kubernetes, image: {IMAGE}}}"
    (tmp_path / "pods.yaml").write_text(f"accelerator: v4-16\nprovider: {provider}\n")
    return tmp_path


def test_a_dry_run_prints_what_would_be_asked_for_and_asks_nobody(
    project: Path, traces: Traces
) -> None:
    words = ["-c", "pods.yaml", "job.yaml", "--dry-run"]
    ended = run_launcher(project, traces.environment, *words)
    assert ended.returncode == 0, ended.stderr
    printed = YAML(typ="safe").load(ended.stdout)
    assert problems(printed) == []
    assert group_of(printed)["numOfHosts"] == 2
    assert not (project / "runs").exists()


def test_without_a_way_to_the_cluster_the_exit_code_is_that_of_no_cluster(
    project: Path, traces: Traces
) -> None:
    """Neither client nor kubeconfig: errors of kinds of their own."""
    ended = run_launcher(project, traces.environment, "-c", "pods.yaml", "job.yaml")
    assert ended.returncode == NO_CLUSTER
    assert "Kubernetes" in ended.stderr
    assert not (project / "runs").exists()
