"""Hosts of a run without Ray: a play, by a script of what happens."""

from collections.abc import Collection
from typing import Any, Self

from launcher.core.results import GangResult, ProcessExit, first_failure
from launcher.gang.monitor import GangMonitor
from launcher.planning.spec import LaunchSpec

Act = Exception | ProcessExit


class PlayedHosts:
    """Hosts whose attempts end as `acts` say: in the check before the start, or with an exit."""

    def __init__(self, acts: list[Act], available: int = 1) -> None:
        """Creates hosts, of which `available` can be used at any time."""
        self.acts, self.available = acts, available
        self.current = None
        self.avoided: list[list[int]] = []
        self.calls: list[str] = []
        """The names of some calls, in order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def gang(self, launch: LaunchSpec) -> Self:
        return self

    def available_hosts(self, world: object) -> int:
        return self.available

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

    def ban(self, processes: Collection[int]) -> None:
        self.calls.append(f"ban {list(processes)}")

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

    def give_up_hosts(self) -> None:
        self.calls.append("give_up_hosts")

    def run(self, launch: LaunchSpec, port: int | None, monitor: GangMonitor) -> GangResult:
        self.calls.append(f"run on {launch.plan.world.processes}")
        act = self.acts.pop(0)
        assert isinstance(act, ProcessExit)
        return GangResult({0: act}, first_failure({0: act}))
