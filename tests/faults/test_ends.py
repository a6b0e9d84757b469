"""Whatever ends the command line, and whenever: nothing is left behind."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage
from tests.support.fault_matrix import assert_finished
from tests.support.launches import Launch, Launcher
from tests.support.programs import is_training, node_of
from tests.support.sampling import sampled

pytestmark = pytest.mark.faults


def provisioning(launch: Launch, traces: Traces) -> None:
    launch.wait_for(lambda: any("raylet" in c for c in traces.processes().values()))


def reserved(launch: Launch, traces: Traces) -> None:
    launch.wait_for(lambda: any("ray::Agent" in c for c in traces.processes().values()))


def checking(launch: Launch, traces: Traces) -> None:
    launch.wait_for(lambda: any("-m trainer --check" in c for c in traces.processes().values()))


def starting(launch: Launch, traces: Traces) -> None:
    launch.wait_for(lambda: any(map(is_training, traces.processes())))


def running(launch: Launch, traces: Traces) -> None:
    launch.wait_for_step()


PHASES = {p.__name__: p for p in (provisioning, reserved, checking, starting, running)}


@pytest.mark.parametrize("phase", sampled(PHASES, ("provisioning", "running")))
def test_kill_9_of_the_command_leaves_nothing(
    launch: Launcher, traces: Traces, phase: Callable[[Launch, Traces], None]
) -> None:
    run = launch()
    phase(run, traces)
    run.process.kill()
    run.wait()
    traces.assert_nothing_left()


@pytest.mark.parametrize("phase", sampled(PHASES, ("checking", "running")))
def test_ctrl_c_ends_everything(
    launch: Launcher, traces: Traces, phase: Callable[[Launch, Traces], None]
) -> None:
    run = launch()
    phase(run, traces)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(timeout_s=60.0) == 130, run.output
    traces.assert_nothing_left(timeout_s=1.0)
    assert "interrupted" in run.output
    assert phase is not running or "checkpoint of step" in run.output


@pytest.mark.full
@pytest.mark.usefixtures("unhurried")
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


def backing_off(start: Callable[..., Launch], traces: Traces, folder: Path) -> Launch:
    """After the second failure in a row, until a file is there."""
    code = f"assert step < 50 or os.path.exists({str(folder / 'healed')!r})"
    return start("faulty", sabotage(folder, code))


def waiting_for_hosts(start: Callable[..., Launch], traces: Traces, folder: Path) -> Launch:
    """For one that no other replaces."""
    run = start("faulty", ", replace_after_s: null")
    run.wait_for_event("step", step=35)
    os.kill(node_of(traces, 1), signal.SIGKILL)
    return run


STATES = {state.__name__: state for state in (backing_off, waiting_for_hosts)}


@pytest.mark.parametrize("state", sampled(STATES, ("waiting_for_hosts",)))
def test_kill_9_between_two_attempts_leaves_nothing_and_a_resume_goes_on(
    state: Callable[..., Launch],
    start: Callable[..., Launch],
    launch: Launcher,
    unbroken: list,
    traces: Traces,
    tmp_path: Path,
) -> None:
    run = state(start, traces, tmp_path)
    run.wait_for_event("state", state=state.__name__)
    run.process.kill()
    run.wait()
    traces.assert_nothing_left()
    (tmp_path / "healed").touch()
    assert_finished(launch.resume("faulty"), unbroken, traces)


@pytest.mark.full
def test_ctrl_c_while_hosts_are_waited_for_ends_everything(
    start: Callable[..., Launch], traces: Traces, tmp_path: Path
) -> None:
    run = waiting_for_hosts(start, traces, tmp_path)
    run.wait_for_event("state", state="waiting_for_hosts")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(timeout_s=60.0) == 130, run.output
    traces.assert_nothing_left(timeout_s=1.0)
    assert "continue with: launch resume faulty" in run.output
