"""On this machine, trainers are ready before Ray is."""

import psutil
import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launcher
from tests.support.programs import agent_of, trainer_of

pytestmark = pytest.mark.slow


def test_trainers_are_processes_that_started_before_the_agents(
    launch: Launcher, traces: Traces
) -> None:
    run = launch()
    run.wait_for_step()
    for process in range(2):
        trainer, agent = (psutil.Process(of(traces, process)) for of in (trainer_of, agent_of))
        assert trainer.create_time() < agent.create_time()
    run.process.terminate()
    run.wait()
    traces.assert_nothing_left(timeout_s=5.0)
