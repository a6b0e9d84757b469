"""Starts one agent per host of a reservation; restarts an agent that does not answer."""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.core.errors import HostError
from launcher.core.formatting import host_name
from launcher.gang.reservation import Reservation, lost
from launcher.providers.ray.client import answered, first_line
from trainer.contract.planning.plan import World

POLL_INTERVAL_S = 0.5


@dataclass(frozen=True)
class Patience:
    """Limits on the start of agents. Four agents start in 3 s on two idle cores."""

    answer_s: float = 45.0
    """Seconds for one agent: more than Ray gives a process to register, so Ray recovers first."""
    attempts: int = 3
    total_s: float = 150.0


@dataclass
class _Awaited:
    """An agent that has not answered yet."""

    process: int
    made_at: float
    attempt: int = 1


def start_agents(
    world: World,
    reservation: Reservation,
    on_status: Callable[[str], None],
    on_warning: Callable[[str], None],
    patience: Patience,
    python: str | None = None,
) -> list[Any]:
    """Starts one actor per bundle; returns them in the order of processes when all are up.

    `python`: the interpreter that runs them; None: the one that runs the hosts' Ray.

    An agent that does not answer is killed and started again in its bundle. Raises HostError
    with the hosts whose agents never answer.
    """
    start = _Start(world, reservation, on_warning, patience, python)
    try:
        while start.awaited:
            on_status(start.progress)
            start.poll()
        on_status(start.progress)
    except BaseException:
        _kill(start.agents)
        raise
    return start.agents


class _Start:
    """The agents of a world while they start."""

    def __init__(
        self,
        world: World,
        reservation: Reservation,
        on_warning: Callable[[str], None],
        patience: Patience,
        python: str | None,
    ):
        self._world, self._reservation, self._python = world, reservation, python
        self._on_warning, self._patience = on_warning, patience
        self._began = time.monotonic()
        self.agents = [self._make(process) for process in range(world.processes)]
        self.awaited = {
            agent.address.remote(): _Awaited(process, self._began)
            for process, agent in enumerate(self.agents)
        }
        """Pending calls and the agents that they wait for."""

    @property
    def progress(self) -> str:
        return f"{len(self.agents) - len(self.awaited)} of {len(self.agents)} agents are up"

    def poll(self) -> None:
        """Waits for answers for a short time; if none arrives, restarts overdue agents."""
        ready = answered(list(self.awaited), POLL_INTERVAL_S)
        for call in ready:
            _check_answer(call, self.awaited.pop(call).process)
        if ready:
            return
        if gone := lost(self._world, self._reservation):
            raise HostError(f"a host was lost during the start: {gone}")
        now = time.monotonic()
        if now - self._began > self._patience.total_s:
            _give_up(self.awaited.values(), now - self._began)
        for call, awaited in list(self.awaited.items()):
            overdue = now - awaited.made_at >= self._patience.answer_s
            if overdue and awaited.attempt < self._patience.attempts:
                del self.awaited[call]
                self._replace(awaited, now)

    def _replace(self, awaited: _Awaited, now: float) -> None:
        process, attempt = awaited.process, awaited.attempt + 1
        self._on_warning(
            f"no response from the agent of {host_name(process)} within "
            f"{self._patience.answer_s:.0f} s: killing it and starting another one "
            f"(attempt {attempt} of {self._patience.attempts})"
        )
        _kill([self.agents[process]])
        self.agents[process] = self._make(process)
        call = self.agents[process].address.remote()
        self.awaited[call] = _Awaited(process, now, attempt)

    def _make(self, process: int) -> Any:
        return _make(self._reservation, process, self._python)


def _make(reservation: Reservation, process: int, python: str | None) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from launcher.gang.agent import Agent

    bundle = dict(reservation.bundle)
    options = ray.remote(Agent).options(
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        resources={k: v for k, v in bundle.items() if k not in ("CPU", "GPU")},
        max_restarts=0,
        max_concurrency=4,
        runtime_env={"py_executable": shlex.quote(python)} if python else None,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            reservation.placement_group, placement_group_bundle_index=process
        ),
    )
    return options.remote(process)


def _check_answer(call: Any, process: int) -> None:
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(call)
    except RayError as error:
        raise HostError(f"no agent on {host_name(process)}: {first_line(error)}") from error


def _give_up(awaited: Any, waited_s: float) -> None:
    names = ", ".join(host_name(process) for process in sorted(a.process for a in awaited))
    raise HostError(f"no agent started on {names} within {waited_s:.0f} s")


def _kill(agents: Sequence[Any]) -> None:
    import ray

    for agent in agents:
        ray.kill(agent)
