"""A run that is asked to use fewer or more hosts, in a play of hosts without Ray."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from launcher.controller.controller import RunController
from launcher.core.results import GangResult, ProcessExit
from launcher.core.signals import Interrupts
from launcher.core.wait import wait_until
from launcher.gang.monitor import GangMonitor
from launcher.planning.spec import LaunchSpec
from launcher.requests.client import ask
from launcher.requests.messages import HostsRequest
from launcher.runs.directory import RunDir
from launcher.runs.state_file import RecordedState
from launcher.ui.progress import RunDisplay
from tests.support.launch_plans import small_launch
from tests.support.played_hosts import PlayedHosts
from trainer.contract.protocol.events import CheckpointSavedEvent

STOPPED, FINISHED = ProcessExit(75 << 8, 1.0, stopped=True), ProcessExit(0, 1.0)
ELASTIC = (
    "{accelerator: cpu, hosts: {min: 1, max: 2}, devices_per_host: 1, provider: {kind: local}}"
)


class AskedHosts(PlayedHosts):
    """Two hosts; in each attempt but the last, the run is asked for another number of hosts."""

    def __init__(self, run: RunDir, numbers: list[int]) -> None:
        super().__init__([FINISHED], available=2)
        self._run, self._numbers = run, numbers
        self.controller: RunController | None = None

    def run(self, launch: LaunchSpec, port: int | None, monitor: GangMonitor) -> GangResult:
        processes = launch.plan.world.processes
        self.calls.append(f"run on {processes}")
        assert RecordedState.read(self._run.folder).hosts == processes
        if not self._numbers:
            return GangResult(dict.fromkeys(range(processes), FINISHED), None)
        assert not monitor.should_stop()
        hosts = self._numbers.pop(0)
        list(ask(self._run.folder, HostsRequest(hosts), lambda: True))
        if hosts > processes:
            assert not monitor.should_stop(), "it has not saved yet"
            assert self.controller
            self.controller.on_event(CheckpointSavedEvent(step=1, process=0))
        assert wait_until(monitor.should_stop, 20.0, poll_interval_s=0.02)
        return GangResult(dict.fromkeys(range(processes), STOPPED), None)


Play = Callable[..., tuple[list[str], list[int]]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs attempts to their end; returns the calls, and the hosts of each recorded plan."""
    cluster = tmp_path / "elastic.yaml"
    cluster.write_text(ELASTIC)
    whole = small_launch(tmp_path, str(cluster))

    def play(*numbers: int, limit: int | None = None) -> tuple[list[str], list[int]]:
        launch = replace(whole, host_limit=limit)
        with RunDir.make(launch, fresh=False) as run:
            run.begin(launch.within_limit)
            display = RunDisplay(Console(quiet=True), launch, None)
            controller = RunController(launch, run, display, Interrupts())
            hosts = AskedHosts(run, list(numbers))
            monkeypatch.setattr(controller, "_hosting", hosts)
            hosts.controller = controller
            assert controller.run().state == "finished"
        plans = [
            json.loads(path.read_text()) for path in sorted((run.folder / "plans").glob("0*.json"))
        ]
        return hosts.calls, [plan["world"]["hosts_per_slice"] for plan in plans]

    return play


def test_a_run_gives_up_a_host_between_two_attempts(play: Play) -> None:
    calls, plans = play(1)
    assert calls == ["run on 2", "give_up_hosts", "run on 1"]
    assert plans == [2, 1]


def test_a_run_takes_a_host_back_once_it_has_saved(play: Play) -> None:
    calls, plans = play(1, 2)
    assert calls == ["run on 2", "give_up_hosts", "run on 1", "run on 2"]
    assert plans == [2, 1, 2]


def test_a_run_starts_within_its_limit_and_grows_beyond_it_on_request(play: Play) -> None:
    calls, plans = play(2, limit=1)
    assert calls == ["run on 1", "run on 2"]
    assert plans == [1, 2]
