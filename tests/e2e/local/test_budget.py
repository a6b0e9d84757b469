"""Runs that use up their budget, and runs whose process is killed: what is saved and notified."""

import json
import signal
from collections.abc import Iterator

import pytest

from tests.support.fault_injection import sabotage
from tests.support.launches import Launch, Launcher
from tests.support.processes import wait_until
from tests.support.webhooks import Webhooks, webhook_server

pytestmark = pytest.mark.slow


@pytest.fixture
def hooks() -> Iterator[Webhooks]:
    with webhook_server() as hooks:
        yield hooks


def started(launch: Launcher, hooks: Webhooks, *words: str) -> Launch:
    slow = sabotage(launch.folder, "time.sleep(0.05)", host=0)  # leaves the cores to other tests
    cluster = launch.cluster_file("cluster", f"{slow}, price_per_chip_hour: 7200", hosts=1)
    targets = json.dumps([{"url": hooks.url}])
    return launch.on(cluster, "small", [f"notify={targets}", *words])


def state_of(run: Launch) -> dict:
    return json.loads((run.run_dir / "state.json").read_text())


def test_a_run_saves_and_stops_when_its_budget_is_used_up(
    launch: Launcher, hooks: Webhooks
) -> None:
    run = started(launch, hooks, "budget.dollars=60")
    assert run.wait() == 130, run.output
    state = state_of(run)
    assert state["state"] == "over_budget"
    assert state["reason"].startswith("the budget is used up: $")
    assert state["checkpoint"] == state["step"]
    assert (run.run_dir / "checkpoints" / str(state["step"])).is_dir()
    assert "continue with: launch resume small budget.dollars=120" in run.output
    assert hooks.events() == ["budget"]

    refused = launch.resume("small")
    assert refused.wait() == 2
    assert "Raise it: launch resume small budget.dollars=120" in refused.output
    assert hooks.events() == ["budget"]

    steps = state["step"] + 5
    resumed = launch.resume("small", "budget.dollars=100000", f"steps={steps}")
    assert resumed.wait() == 0, resumed.output
    assert f"continues after step {state['step']}: attempt 2" in resumed.output
    assert hooks.events() == ["budget", "resumed", "finished"]


def test_the_loss_of_a_killed_run_is_notified_without_a_command(
    launch: Launcher, hooks: Webhooks
) -> None:
    run = started(launch, hooks)
    run.wait_for_step()
    run.process.send_signal(signal.SIGKILL)
    run.process.wait()
    wait_until(lambda: hooks.delivered, 60.0)
    assert hooks.events() == ["lost"]
    assert state_of(run)["state"] == "running"
