"""Runs on a Ray cluster that is reached by nothing but its Jobs API."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.core.exit_codes import INTERRUPTED, NO_CLUSTER, OK
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch
from tests.support.processes import holds, run_launcher, wait_until, written
from tests.support.project_fixtures import project, traces
from tests.support.ray_clusters import RayCluster
from tests.support.worlds import cpu_world

__all__ = ["project", "traces"]
pytestmark = pytest.mark.jobs_api
NOTHING = {"groups": [], "actors": [], "processes": []}
CLUSTER = """\
accelerator: cpu
hosts: 2
devices_per_host: 1
storage: {storage}
provider: {{kind: attach, address: "{address}", token_path: {token}}}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of the user who runs the cluster."""
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def other_raylets() -> Iterator[None]:
    """Stand-ins for the raylets of other clusters on the head, where nothing listens."""
    command = ["raylet", "-c", "import time; time.sleep(3600)"]
    started = [
        subprocess.Popen([*command, f"--gcs-address=127.0.0.1:{port}"], executable=sys.executable)
        for port in range(1, 10)
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(home: Path, unhurried: None) -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        cluster = RayCluster(cpu_world(2, 1), with_dashboard=True)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.mark.usefixtures("other_raylets")
def test_a_run_is_a_job_there_that_ctrl_c_stops_and_resume_goes_on_with(
    cluster: RayCluster, home: Path, project: Path, traces: Traces, tmp_path: Path
) -> None:
    """Who has no token is not let in; the token is nowhere in what is written and printed."""
    path = project / "cluster.yaml"
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)

    def start(token: Path) -> Launch:
        path.write_text(
            CLUSTER.format(storage=tmp_path / "storage", address=cluster.dashboard, token=token)
        )
        words = ["-c", str(path), "job.yaml", "name=small", "steps=100000"]
        return Launch(project, traces, "small", words)

    refused = start(wrong)
    assert refused.wait() == NO_CLUSTER
    assert "rejected the token" in refused.output
    assert not refused.run_dir.exists()

    run = start(cluster.token_path)
    run.wait_for(lambda: "host 0 step" in run.output)
    told = run_launcher(project, traces.environment, "status", "small", "-o", "json")
    assert json.loads(told.stdout)["alive"], told.stdout + told.stderr
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == INTERRUPTED, run.output
    state = json.loads((run.run_dir / "state.json").read_text())
    assert state["state"] == "stopped"
    assert state["checkpoint"] == state["step"]
    wait_until(lambda: cluster.left() == NOTHING, 60.0)

    more = f"steps={state['step'] + 5}"
    resumed = run_launcher(project, traces.environment, "resume", "small", more)
    assert resumed.returncode == OK, resumed.stdout + resumed.stderr
    assert f"restored step {state['step']}" in resumed.stdout
    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    steps = [line["step"] for line in map(json.loads, lines) if "loss" in line]
    assert steps == list(range(1, state["step"] + 6))
    token = cluster.token_path.read_text()
    files = written(project, home)
    assert [path for path in files if holds(path, token)] == []
    assert token not in run.output + resumed.stdout
    wait_until(lambda: cluster.left() == NOTHING, 60.0)
