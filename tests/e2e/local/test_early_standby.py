"""On this machine, trainers are ready before Ray is."""

import psutil
import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch, Launcher
from tests.support.programs import agent_of, trainer_of

pytestmark = pytest.mark.slow


def stopped(run: Launch, traces: Traces) -> None:
    run.process.terminate()
    assert run.wait() in (75, 130, 143), run.output
    traces.assert_nothing_left(timeout_s=5.0)


def test_trainers_are_processes_that_started_before_the_agents(
    launch: Launcher, traces: Traces
) -> None:
    run = launch()
    run.wait_for_step()
    for process in range(2):
        trainer, agent = (psutil.Process(of(traces, process)) for of in (trainer_of, agent_of))
        assert trainer.create_time() < agent.create_time()
    stopped(run, traces)


def test_hosts_with_variables_of_their_own_get_processes_of_their_own(
    launch: Launcher, traces: Traces
) -> None:
    run = launch("own", ", host_env: {1: {PYTHONHASHSEED: '7'}}")
    run.wait_for_step()
    assert psutil.Process(trainer_of(traces, 1)).environ()["PYTHONHASHSEED"] == "7"
    stopped(run, traces)
