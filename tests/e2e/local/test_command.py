"""Any program on two real Ray nodes: it finds its peers, and its end is told as any other's."""

import hashlib
import json
import os
import re
import secrets
import signal
import stat
import sys
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch, Launcher
from tests.support.processes import run_launcher

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
CLUSTER = "{accelerator: cpu, hosts: 2, devices_per_host: 2, provider: {kind: local%s}}"
EXAMPLE = ROOT / "jobs" / "sum_devices.py"

FAILS_ON_ONE_HOST = """\
import jax, os
jax.distributed.initialize()
if jax.process_index() == 1:
    print("this host gives up", flush=True)
    os._exit(7)
jax.experimental.multihost_utils.sync_global_devices("never")
"""
ENDS_IN_ORDER = """\
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
events = os.fdopen(int(os.environ["SLIPWAY_EVENTS_FD"]), "w", buffering=1)
events.write(json.dumps({"event": "step", "step": 3, "loss": None}) + "\\n")
print("up", flush=True)
time.sleep(600)
"""
ASKS_FOR_A_SECRET = """\
import hashlib, os
print(hashlib.sha256(os.environ["A_SECRET"].encode()).hexdigest())
"""
DEAF = """\
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""


def write(folder: Path, command: list[str], provider: str = "") -> None:
    (folder / "any.yaml").write_text(json.dumps({"name": "any", "command": command}))
    (folder / "two.yaml").write_text(CLUSTER % provider)


def log(folder: Path, process: int) -> str:
    """Returns the output of a program without that of JAX's collectives, which may interrupt it."""
    text = (folder / "runs" / "any" / "logs" / f"host-{process:04d}.log").read_text()
    return re.sub(r"\[Gloo\].*\n", "", text)


def state(folder: Path) -> dict[str, object]:
    return json.loads((folder / "runs" / "any" / "state.json").read_text())


def test_the_example_finds_all_devices_on_every_host(tmp_path: Path, traces: Traces) -> None:
    write(tmp_path, ["python", str(EXAMPLE)])
    ended = run_launcher(tmp_path, traces.environment, "-c", "two.yaml", "any.yaml")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for process in (0, 1):
        assert f"process {process} of 2\n" in log(tmp_path, process)
        assert "2 of 4 devices, together 4\n" in log(tmp_path, process)
    assert "host 0 2 of 4 devices, together 4" in ended.stdout
    assert "finished in" in ended.stdout
    assert state(tmp_path)["state"] == "finished"
    traces.assert_nothing_left()


def test_first_failure_is_reported_with_exit_code_and_last_lines(
    tmp_path: Path, traces: Traces
) -> None:
    (tmp_path / "fails.py").write_text(FAILS_ON_ONE_HOST)
    write(tmp_path, ["python", "fails.py"])
    words = ("-c", "two.yaml", "any.yaml", "retries.failures=0")
    ended = run_launcher(tmp_path, traces.environment, *words)
    assert ended.returncode == 1
    assert "this host gives up" in ended.stderr
    assert "host-0001 exited with code 7" in ended.stderr
    assert state(tmp_path)["state"] == "failed"
    traces.assert_nothing_left()


def test_program_missing_on_one_host_is_reported_with_host(tmp_path: Path, traces: Traces) -> None:
    tool = tmp_path / "bin" / "only-here"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexec sleep 600\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    write(tmp_path, ["only-here"], f", host_env: {{0: {{PATH: '{tool.parent}:/usr/bin:/bin'}}}}")
    words = ("-c", "two.yaml", "any.yaml", "retries.failures=0")
    ended = run_launcher(tmp_path, traces.environment, *words)
    assert ended.returncode == 1
    (why,) = (line for line in ended.stderr.splitlines() if "could not start" in line)
    assert "only-here" in why
    assert "\nhost-0001 exited with code 127" in ended.stderr
    traces.assert_nothing_left()


def test_a_secret_reaches_every_host_and_nothing_that_is_written(
    tmp_path: Path, traces: Traces
) -> None:
    (tmp_path / "asks.py").write_text(ASKS_FOR_A_SECRET)
    write(tmp_path, ["python", "asks.py"])
    secret = secrets.token_hex(16)
    environment = {**traces.environment, "A_SECRET": secret}
    words = ("-c", "two.yaml", "any.yaml", "secrets=[A_SECRET]")
    plan = run_launcher(tmp_path, environment, "plan", *words)
    ended = run_launcher(tmp_path, environment, *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = {log(tmp_path, process) for process in (0, 1)}
    assert found == {hashlib.sha256(secret.encode()).hexdigest() + "\n"}
    told = "".join(each.stdout + each.stderr for each in (plan, ended))
    assert "A_SECRET='(secret)'" in plan.stdout
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert secret not in told
    assert [path for path in written if secret.encode() in path.read_bytes()] == []


def test_unset_secrets_are_all_reported_and_nothing_starts(tmp_path: Path, traces: Traces) -> None:
    write(tmp_path, ["true"])
    ended = run_launcher(
        tmp_path, traces.environment, "-c", "two.yaml", "any.yaml", "secrets=[NOT_SET, NOR_THIS]"
    )
    assert ended.returncode == 2
    assert (
        "secrets: the environment variable NOT_SET is not set. Export it with NOT_SET="
        in ended.stderr
    )
    assert "the environment variable NOR_THIS is not set" in ended.stderr
    assert not (tmp_path / "runs").exists()


def test_ctrl_c_gives_the_program_time_to_end(launch: Launcher, traces: Traces) -> None:
    (launch.folder / "ends.py").write_text(ENDS_IN_ORDER)
    (launch.folder / "job.yaml").write_text(f"name: any\ncommand: [{sys.executable}, ends.py]\n")
    run = launch("any")
    _wait_until_up(run)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(timeout_s=60.0) == 130, run.output
    assert "stopped at step 3, no checkpoint; continue with: launch resume any" in run.output
    traces.assert_nothing_left()


def test_a_host_that_is_lost_while_the_run_stops_is_not_waited_for(
    launch: Launcher, traces: Traces
) -> None:
    (launch.folder / "deaf.py").write_text(DEAF)
    command = f"command: [{sys.executable}, deaf.py]"
    (launch.folder / "job.yaml").write_text(f"name: any\n{command}\ngrace_s: 600\n")
    run = launch("any")
    _wait_until_up(run)
    os.kill(run.process.pid, signal.SIGINT)
    run.wait_for(lambda: "stopping" in run.output)
    agent = next(p for p, c in traces.processes().items() if c.startswith("ray::Agent"))
    os.kill(agent, signal.SIGKILL)
    assert run.wait(timeout_s=60.0) == 130, run.output
    assert "attempt 2" not in run.output
    traces.assert_nothing_left()


def _wait_until_up(run: Launch) -> None:
    """Waits until the programs of both hosts have printed something."""
    logs = [run.run_dir / "logs" / f"host-000{process}.log" for process in (0, 1)]
    run.wait_for(lambda: all(log.exists() and log.read_text() for log in logs))
