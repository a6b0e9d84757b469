"""However a launch ends before its run has begun: nothing is left in the cloud, nor here."""

import os
import signal
from pathlib import Path

import grpc
import pytest

from launcher.core.exit_codes import INTERRUPTED, NO_CLUSTER, OK
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch
from tests.support.processes import run_launcher, wait_until
from tests.support.tpu_api import StandIn, State
from tests.support.tpu_api_fixtures import cluster_file, noted

pytestmark = pytest.mark.gcp

WORDS = ("checkpoint=null", "data.global_batch=20")


def start(project: Path, stand_in: StandIn, traces: Traces, name: str) -> Launch:
    cluster = cluster_file(project, stand_in)
    return Launch(project, traces, name, ["-c", str(cluster), "job.yaml", f"name={name}", *WORDS])


def keepers(traces: Traces) -> list[int]:
    return [pid for pid, command in traces.processes().items() if "gcp_reclaimer" in command]


def wait_in_queue(run: Launch) -> None:
    run.wait_for(lambda: "in the queue for capacity" in run.output)


@pytest.mark.parametrize("queued", [False, True])
def test_hosts_refused_at_once_or_in_queue_exit_3(
    queued: bool, cloud: StandIn, project: Path, traces: Traces
) -> None:
    if queued:
        cloud.fail_with = "Limit 0"
    else:
        cloud.refuse_with = (grpc.StatusCode.RESOURCE_EXHAUSTED, "Limit 0")
    run = start(project, cloud, traces, f"refused-{queued}")
    assert run.wait() == NO_CLUSTER, run.output
    assert "Limit 0" in run.output
    traces.assert_nothing_left()
    assert len(cloud.asked) == 1
    assert not cloud.held and not noted() and not run.run_dir.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_ends_in_the_queue_leaves_nothing(
    number: signal.Signals, cloud: StandIn, project: Path, traces: Traces
) -> None:
    """After `kill -9` a process of its own sees to that."""
    cloud.before = [State.WAITING_FOR_RESOURCES] * 1000
    run = start(project, cloud, traces, f"ended-{number}")
    wait_in_queue(run)
    os.kill(run.process.pid, number)
    assert run.wait() == (INTERRUPTED if number == signal.SIGINT else -number), run.output
    traces.assert_nothing_left(timeout_s=60.0)
    assert len(cloud.deleted) == 1 and not cloud.held and not noted()


def test_down_gives_back_what_a_crash_of_the_machine_has_left(
    cloud: StandIn, project: Path, traces: Traces
) -> None:
    cloud.before = [State.WAITING_FOR_RESOURCES] * 1000
    run = start(project, cloud, traces, "crashed")
    wait_in_queue(run)
    (keeper,) = keepers(traces)
    for process in (keeper, run.process.pid):
        os.kill(process, signal.SIGKILL)
    run.wait()
    wait_until(lambda: not traces.processes())
    assert len(cloud.held) == 1 and len(noted()) == 1
    down = run_launcher(project, traces.environment, "down", "pod.yaml", "--yes")
    assert down.returncode == OK, down.stderr
    assert "is given back" in down.stdout
    assert not cloud.held and not noted()
