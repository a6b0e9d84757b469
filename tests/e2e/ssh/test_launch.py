"""Runs on two machines that are reached by SSH: provisioned, trained on, left as they were."""

import glob
import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.core.exit_codes import BAD_USAGE, NO_CLUSTER, OK
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sleepy_steps
from tests.support.launches import curve, start
from tests.support.processes import holds, run_launcher, wait_until, written
from tests.support.ssh_machines import NEEDED, WHY_NOT, Machines, machines

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not NEEDED, reason=WHY_NOT)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, traces: Traces) -> Iterator[Machines]:
    with machines(tmp_path_factory.mktemp("machines"), ["alpha", "beta"], traces) as found:
        yield found
    traces.assert_nothing_left()


def tokens(traces: Traces) -> set[str]:
    """Of the Ray clusters that run."""
    paths = list(traces.temporary.glob("slipway-*/token"))
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths)
    return {path.read_text() for path in paths}


def nodes(traces: Traces) -> int:
    """Of Ray, that have begun."""
    return len(glob.glob(f"{traces.temporary}/slipway-*/*/session_*/"))  # noqa: PTH207 it comes and goes


def knowing(secret: str, traces: Traces) -> int:
    """How many processes that train have it in their environment."""
    training = [p for p, command in traces.processes().items() if "-m trainer" in command]
    return sum(holds(Path(f"/proc/{process}/environ"), secret) for process in training)


@pytest.mark.full
def test_a_host_without_python_is_named_and_what_the_others_have_got_stays(
    two: Machines, project: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the curve of simulated hosts, and a token and a secret that nobody tells: one start."""
    two.configure(
        "bare",
        HostName=two.network.ip(1),
        IdentityFile=two.key,
        SetEnv="UV_PYTHON_PREFERENCE=only-managed",
    )
    cluster = two.cluster(["alpha", "bare"])
    failed = start(project, cluster, traces, "failed")
    assert failed.wait() == NO_CLUSTER, failed.output
    assert "environments for 2 of 2 hosts" in failed.output
    assert "1 of 2 hosts cannot be used:\n  bare: " in failed.output
    assert "No interpreter found for Python" in failed.output
    traces.assert_nothing_left()
    assert not failed.run_dir.exists()

    cluster = two.cluster()
    secret = secrets.token_hex(16)
    monkeypatch.setenv("A_SECRET", secret)
    run = start(project, cluster, traces, "first", "checkpoint=null", "secrets=[A_SECRET]")
    run.wait_for(lambda: nodes(traces) >= 2)
    (token,) = tokens(traces)
    run.wait_for(lambda: knowing(secret, traces) == 2)
    assert not any(holds(path, token) for path in Path("/proc").glob("[0-9]*/cmdline"))
    assert run.wait() == OK, run.output
    assert "code for 0 of 2 hosts, environments for 1 of 2 hosts" in run.output
    assert "finished 12 steps" in run.output
    traces.assert_nothing_left()

    again = start(project, cluster, traces, "second")
    assert again.wait() == OK, again.output
    assert "code for 0 of 2 hosts, environments for 0 of 2 hosts" in again.output

    simulated = start(project, cluster, traces, "simulated", "checkpoint=null", "--simulate")
    assert simulated.wait() == OK, simulated.output
    assert len(curve(run.run_dir)) == 12
    assert curve(run.run_dir) == curve(again.run_dir) == curve(simulated.run_dir)
    assert json.loads((run.run_dir / "state.json").read_text())["state"] == "finished"
    assert sorted(path.name for path in (run.run_dir / "logs").glob("host-*")) == [
        "host-0000.log", "host-0001.log"
    ]  # fmt: skip
    files = written(project, *two.disks)
    assert [path for path in files if holds(path, token) or holds(path, secret)] == []
    assert token not in run.output
    assert secret not in run.output


def test_doctor_inspects_hosts_through_jump_and_changes_nothing(
    two: Machines, project: Path, traces: Traces
) -> None:
    def doctor(more: str = "") -> subprocess.CompletedProcess[str]:
        words = ("doctor", "-c", str(two.cluster(more=more)), "-o", "json")
        return run_launcher(project, traces.environment, *words)

    with two.hidden(1):
        lost = doctor()
        assert lost.returncode == NO_CLUSTER
        assert (
            "  beta: no answer. Check that it is up, and reachable from here (provider.proxy_jump)"
            in lost.stderr
        )
        looked = doctor("  proxy_jump: alpha\n")
    assert looked.returncode == OK, looked.stdout + looked.stderr
    addresses = [host["report"]["address"] for host in json.loads(looked.stdout)["hosts"]]
    assert addresses == [two.network.ip(0), two.network.ip(1)]
    traces.assert_nothing_left()


def test_kill_9_of_the_command_before_the_run_has_begun_leaves_nothing(
    two: Machines, project: Path, traces: Traces
) -> None:
    run = start(project, two.cluster(), traces, "killed")
    run.wait_for(lambda: nodes(traces) >= 2)
    run.process.kill()
    run.wait()
    traces.assert_nothing_left()


def test_run_continues_without_command_and_is_found_stopped_resumed(
    two: Machines, project: Path, traces: Traces, tmp_path: Path
) -> None:
    # The code of the hosts is on their PYTHONPATH.
    shutil.copy(sleepy_steps(tmp_path) / "sitecustomize.py", project)
    words = [f"storage={tmp_path}", "checkpoint={every_steps: 20, keep: 2}", "steps=100000"]
    run = start(project, two.cluster(), traces, "alone", *words)
    run.wait_for(lambda: "host 0 step" in run.output)
    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()

    def status() -> dict[str, Any]:
        told = run_launcher(project, traces.environment, "status", "alone", "-o", "json")
        return json.loads(told.stdout)

    before = status()
    assert before["alive"]
    wait_until(lambda: status()["step"] > before["step"])
    audited = run_launcher(project, traces.environment, "audit", "alone")
    assert audited.returncode == BAD_USAGE, audited.stdout + audited.stderr
    assert "alone is still running on alpha: its record is there" in audited.stderr
    stopped = run_launcher(project, traces.environment, "stop", "alone")
    assert "alone was stopped at step" in stopped.stdout, stopped.stdout + stopped.stderr
    traces.assert_nothing_left(timeout_s=60.0)
    now = status()
    assert now["state"] == "stopped"

    more = f"steps={now['step'] + 10}"
    resumed = run_launcher(project, traces.environment, "resume", "alone", more)
    assert resumed.returncode == OK, resumed.stdout + resumed.stderr
    assert f"restored step {now['step']}" in resumed.stdout
    steps = [line[0] for line in curve(run.run_dir)]
    assert steps == list(range(1, now["step"] + 11))
