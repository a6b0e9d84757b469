"""Whatever ends the command line, and whenever: nothing is left behind."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.faults.launches import Launch, Launcher
from tests.leftovers import Traces

pytestmark = pytest.mark.slow


def provisioning(launch: Launch, traces: Traces) -> None:
    launch.wait_for(lambda: any("raylet" in c for c in traces.processes().values()))


def reserved(launch: Launch, traces: Traces) -> None:
    launch.wait_for(lambda: any("ray::Agent" in c for c in traces.processes().values()))


def checking(launch: Launch, traces: Traces) -> None:
    launch.wait_for(lambda: any("trainer --check" in c for c in traces.processes().values()))


def starting(launch: Launch, traces: Traces) -> None:
    launch.wait_for(lambda: any("-m trainer /" in c for c in traces.processes().values()))


def running(launch: Launch, traces: Traces) -> None:
    launch.wait_for_step()


PHASES = [provisioning, reserved, checking, starting, running]


@pytest.mark.parametrize("phase", PHASES)
def test_kill_9_of_the_command_leaves_nothing(
    launch: Launcher, traces: Traces, phase: Callable[[Launch, Traces], None]
) -> None:
    run = launch()
    phase(run, traces)
    run.process.kill()
    run.wait()
    traces.assert_nothing_left()


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_ends_everything(
    launch: Launcher, traces: Traces, phase: Callable[[Launch, Traces], None]
) -> None:
    run = launch()
    phase(run, traces)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(timeout_s=60.0) == 130, run.output
    traces.assert_nothing_left(timeout_s=1.0)
    assert "interrupted" in run.output


def test_two_launches_at_once_do_not_see_each_other(launch: Launcher, traces: Traces) -> None:
    first, second = launch("first"), launch("second")
    first.wait_for_step()
    second.wait_for_step()
    first.process.kill()
    first.wait()
    lines = (second.run_dir / "metrics.jsonl").read_text().count("\n")
    second.wait_for(lambda: (second.run_dir / "metrics.jsonl").read_text().count("\n") > lines + 50)
    os.killpg(second.process.pid, signal.SIGINT)
    assert second.wait(timeout_s=60.0) == 130
    traces.assert_nothing_left()
