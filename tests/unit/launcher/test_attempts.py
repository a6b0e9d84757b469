"""What follows when hosts cannot run an attempt: a play of hosts, by a script of what happens."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

from launcher.controller import controller, supervisor
from launcher.controller.controller import RunController
from launcher.controller.supervisor import RunEnded
from launcher.core.results import GangResult, ProcessExit, first_failure
from launcher.core.signals import Interrupts
from launcher.gang.agent_calls import AgentError, GangError
from launcher.gang.preflight import HostProblem
from launcher.planning.spec import LaunchSpec
from launcher.runs.directory import RunDir
from launcher.ui.progress import RunDisplay
from tests.support.launch_plans import small_launch

CRASHED, FINISHED = ProcessExit(1 << 8, 1.0), ProcessExit(0, 1.0)
UNFIT = GangError("host-0000: found 0 of 4 TPUs", [0])
Act = Exception | ProcessExit


class PlayedHosts:
    """Hosts whose attempts end as `acts` say: in the check before the start, or with an exit."""

    def __init__(self, acts: list[Act]) -> None:
        self.acts = acts
        self.current = None
        self.avoided: list[list[int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def gang(self, launch: LaunchSpec) -> Self:
        return self

    def available_hosts(self, world: object) -> int:
        return 1

    def watched(self, launch: LaunchSpec) -> list[int]:
        return [0]

    def unknown(self, gang: object) -> list[int]:
        return [0]

    def known(self, gang: object) -> dict[int, Any]:
        return {}

    def know(self, gang: object, reports: object) -> None:
        pass

    def keep_agents(self) -> None:
        pass

    def regroup(self, outcome: GangResult | None) -> None:
        pass

    def check_head(self) -> None:
        pass

    def dismiss(self, suspects: Collection[int] = (), lost_hosts: Collection[int] = ()) -> None:
        self.avoided.append(list(suspects))

    def run_preflight(self, platform: str) -> dict[int, Any]:
        return {}

    def check(self, launch: LaunchSpec, known: object) -> dict[int, Any]:
        act = self.acts[0]
        if isinstance(act, Exception):
            del self.acts[0]
            raise act
        return {}

    def run(self, *_: object) -> GangResult:
        act = self.acts.pop(0)
        assert isinstance(act, ProcessExit)
        return GangResult({0: act}, first_failure({0: act}))


Play = Callable[[list[Act]], tuple[RunEnded, PlayedHosts]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Runs attempts to their end, without the waits between them."""
    monkeypatch.setattr(supervisor, "FIRST_BACK_OFF_S", 0.0)
    launch = small_launch(tmp_path)
    with RunDir.create(launch) as run:

        def play(acts: list[Act]) -> tuple[RunEnded, PlayedHosts]:
            display = RunDisplay(Console(quiet=True), launch, None)
            loop, hosts = RunController(launch, run, display, Interrupts()), PlayedHosts(acts)
            monkeypatch.setattr(loop, "_hosting", hosts)
            return loop.run(), hosts

        yield play


def test_hosts_unfit_for_the_first_attempt_end_the_run(play: Play) -> None:
    with pytest.raises(GangError, match="0 of 4 TPUs"):
        play([UNFIT, FINISHED])


def test_hosts_unfit_for_a_later_attempt_are_tried_again(play: Play) -> None:
    over, _ = play([CRASHED, UNFIT, UNFIT, FINISHED])
    assert over.state == "finished"


def test_hosts_unfit_for_a_later_attempt_are_avoided(play: Play) -> None:
    _, hosts = play([CRASHED, UNFIT, FINISHED])
    assert [0] in hosts.avoided


def test_hosts_that_stay_unfit_end_the_run_with_what_is_wrong(play: Play) -> None:
    over, _ = play([CRASHED, UNFIT, UNFIT, UNFIT, UNFIT])
    assert over.state == "failed"
    assert "found 0 of 4 TPUs (3 times in a row" in over.reason


def test_later_attempt_waits_for_host_with_held_chips(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HostProblem(0, "process 7 has /dev/accel0 open")
    found = [[], [held], [held], []]
    monkeypatch.setattr(controller, "judge", lambda *_: found.pop(0))
    monkeypatch.setattr(controller, "HELD_POLL_INTERVAL_S", 0.0)
    over, hosts = play([CRASHED, FINISHED])
    assert (over.state, found, hosts.avoided) == ("finished", [], [])


def test_an_agent_that_fails_before_the_first_start_is_tried_again(play: Play) -> None:
    over, _ = play([AgentError("host-0000: its agent ended", [0]), FINISHED])
    assert over.state == "finished"


def test_losses_after_long_attempts_without_steps_go_on(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LONG_S", 1e-9)
    gone = ProcessExit(None, 1.0, lost="gone")
    over, _ = play([*[gone] * (supervisor.LOSSES_IN_VAIN + 5), FINISHED])
    assert over.state == "finished"
