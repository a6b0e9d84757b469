"""Runs on slices from a stand-in for the Cloud TPU API, on network namespaces as hosts."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.core.exit_codes import JOB_FAILED, NO_CLUSTER, OK
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sleepy_steps
from tests.support.launches import Launch, curve, start
from tests.support.processes import run_launcher, wait_until
from tests.support.ssh_machines import NEEDED, WHY_NOT, Machines, machines
from tests.support.tpu_api import StandIn, kill, serving
from tests.support.tpu_api_fixtures import cluster_file, noted

pytestmark = [pytest.mark.gcp, pytest.mark.skipif(not NEEDED, reason=WHY_NOT)]

SLICES = """\
accelerator: v4-8
slices: 2
provider:
  kind: gcp
  project: mine
  zone: us-central2-b
  endpoint: {endpoint}
"""
PROGRAM = """\
import json, os, pathlib, sys, time
print(json.dumps({name: value for name, value in os.environ.items() if "MEGASCALE" in name}))
spoken = pathlib.Path(sys.argv[1])
(spoken / os.environ["SLIPWAY_PROCESS_ID"]).touch()
while len(list(spoken.iterdir())) < 2:
    time.sleep(0.05)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def pods(
    tmp_path_factory: pytest.TempPathFactory, traces: Traces
) -> Iterator[tuple[StandIn, Machines]]:
    with machines(tmp_path_factory.mktemp("machines"), ["alpha", "beta"], traces) as found:
        addresses = [found.network.ip(number) for number in range(2)]
        stand_in = StandIn(addresses, Path(f"{found.key}.pub"))
        stand_in.on_taken = lambda taken: switch_off(found, taken, traces)
        with serving(stand_in):
            yield stand_in, found
    traces.assert_nothing_left()


def switch_off(found: Machines, taken: list[int], traces: Traces) -> None:
    """What runs on machines ends at once, and what it has written of itself goes with their disks;
    the next who gets them finds them up."""
    for number in taken:
        listing = ["ip", "netns", "pids", found.network.namespace(number)]
        pids = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split()
        kill([int(pid) for pid in pids if not is_server(pid)])
    for folder in traces.temporary.glob("slipway-*"):
        shutil.rmtree(folder)


def is_server(pid: str) -> bool:
    try:
        return b"[listener]" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


def test_run_on_pod_has_curve_of_simulated_hosts_and_returns_pod(
    pods: tuple[StandIn, Machines], project: Path, traces: Traces
) -> None:
    stand_in, found = pods
    cluster = cluster_file(project, stand_in, f"  user: root\n  remote_dir: {found.disk}\n")
    run = start(project, cluster, traces, "first")
    assert run.wait() == OK, run.output
    assert "v4-16 (on demand) in us-central2-b, project mine: about $25.76 an hour" in run.output
    assert "in the queue for capacity (WAITING_FOR_RESOURCES" in run.output
    assert "finished 12 steps" in run.output
    assert len(stand_in.deleted) == 1 and not stand_in.held
    assert noted() == []
    traces.assert_nothing_left()

    simulated = start(project, cluster, traces, "simulated", "checkpoint=null", "--simulate")
    assert simulated.wait() == OK, simulated.output
    assert len(curve(run.run_dir)) == 12
    assert curve(run.run_dir) == curve(simulated.run_dir)
    assert json.loads((run.run_dir / "state.json").read_text())["state"] == "finished"


def test_preempted_pod_is_replaced_and_reclaimer_watches_detached_run(
    pods: tuple[StandIn, Machines], project: Path, traces: Traces, tmp_path: Path
) -> None:
    stand_in, found = pods
    cluster = cluster_file(project, stand_in, f"  user: root\n  remote_dir: {found.disk}\n")
    # The code of the hosts is on their PYTHONPATH.
    shutil.copy(sleepy_steps(tmp_path) / "sitecustomize.py", project)
    words = [f"storage={tmp_path}", "checkpoint={every_steps: 20, keep: 2}", "steps=100000"]
    run = start(project, cluster, traces, "small", *words, "retries.preemptions=3")
    run.wait_for(lambda: "checkpoint of step 40 saved" in run.output)
    stand_in.preempt()
    run.wait_for(lambda: "the hosts were preempted" in run.output)
    run.wait_for(lambda: "restored step" in run.output)
    assert len(stand_in.asked) == len(stand_in.deleted) + 1
    assert list(stand_in.held) == noted()

    os.kill(run.process.pid, signal.SIGKILL)
    run.wait()
    stopped = run_launcher(project, traces.environment, "stop", "small")
    assert "small was stopped at step" in stopped.stdout, stopped.stdout + stopped.stderr
    wait_until(lambda: not stand_in.held)
    traces.assert_nothing_left(timeout_s=60.0)
    assert noted() == []
    assert json.loads((run.run_dir / "state.json").read_text())["state"] == "stopped"
    restored = [event["step"] for event in run.events() if event["event"] == "restored"]
    assert restored and all(step >= 20 for step in restored)


def test_two_slices_find_each_other_and_stay_after_failed_run(
    pods: tuple[StandIn, Machines], project: Path, traces: Traces, tmp_path: Path
) -> None:
    stand_in, found = pods
    more = f"  user: root\n  remote_dir: {found.disk}\n  autostop_minutes: 0.1\n"
    cluster = project / "slices.yaml"
    cluster.write_text(SLICES.format(endpoint=stand_in.endpoint) + more)
    (project / "program.py").write_text(PROGRAM)
    (project / "any.yaml").write_text(f"name: any\ncommand: [python, -u, program.py, {tmp_path}]\n")
    words = ["-c", str(cluster), "any.yaml", "name=slices", "retries.failures=0"]
    run = Launch(project, traces, "slices", words)
    assert run.wait() == JOB_FAILED, run.output
    assert "the hosts stay for 6.0 s, about $0.04, to look at them: ssh -F" in run.output
    hosts = [json.loads(run.log(process).splitlines()[0]) for process in (0, 1)]
    assert [host["MEGASCALE_SLICE_ID"] for host in hosts] == ["0", "1"]
    assert {host["MEGASCALE_NUM_SLICES"] for host in hosts} == {"2"}
    (coordinator,) = {host["MEGASCALE_COORDINATOR_ADDRESS"] for host in hosts}
    assert coordinator.startswith(found.network.ip(0))
    wait_until(lambda: not stand_in.held and not noted())
    traces.assert_nothing_left(timeout_s=60.0)


def test_a_pod_whose_hosts_cannot_be_used_is_given_back(
    pods: tuple[StandIn, Machines], project: Path, traces: Traces
) -> None:
    stand_in, _ = pods
    cluster = cluster_file(project, stand_in, "  user: root\n  remote_dir: /proc/nowhere\n")
    before = len(stand_in.asked)
    run = start(project, cluster, traces, "unusable")
    assert run.wait() == NO_CLUSTER, run.output
    assert "2 of 2 hosts cannot be used" in run.output
    traces.assert_nothing_left()
    assert len(stand_in.asked) == before + 1
    assert not stand_in.held and not noted() and not run.run_dir.exists()
