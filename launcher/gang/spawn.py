"""Starts agents on reserved hosts; restarts an agent that does not answer."""

import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.core.errors import HostError
from launcher.gang.reservation import Seat, lost
from launcher.providers.ray.client import answered, first_line
from launcher.providers.ray.host_cluster import HostCluster
from trainer.contract.protocol.process_names import process_name

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
    seats: Mapping[int, Seat],
    hosts: HostCluster,
    on_status: Callable[[str], None],
    on_warning: Callable[[str], None],
    patience: Patience,
    python: str | None = None,
) -> dict[int, Any]:
    """Starts an actor in the seat of each process; returns them when all are up.

    `python`: the interpreter that runs them; None: the one that runs the hosts' Ray.

    An agent that does not answer is killed and started again in its seat. Raises HostError
    with the hosts whose agents never answer.
    """
    start = AgentStart(seats, hosts, on_warning, patience, python)
    try:
        while start.awaited:
            on_status(start.progress)
            start.poll(POLL_INTERVAL_S)
        on_status(start.progress)
    except BaseException:
        start.kill()
        raise
    return start.agents


class AgentStart:
    """The agents of some processes while they start."""

    def __init__(
        self,
        seats: Mapping[int, Seat],
        hosts: HostCluster,
        on_warning: Callable[[str], None],
        patience: Patience,
        python: str | None,
    ) -> None:
        """Starts them; see `start_agents`."""
        self._seats, self._hosts, self._python = seats, hosts, python
        self._on_warning, self._patience = on_warning, patience
        self._began = time.monotonic()
        self.agents = {process: self._make(process) for process in seats}
        self.awaited = {
            agent.address.remote(): _Awaited(process, self._began)
            for process, agent in self.agents.items()
        }
        """Pending calls and the agents that they wait for."""

    @property
    def progress(self) -> str:
        return f"{len(self.agents) - len(self.awaited)} of {len(self.agents)} agents are up"

    def poll(self, wait_s: float) -> None:
        """Waits for answers for `wait_s`; if none arrives, restarts overdue agents.

        Raises HostError with the hosts whose agents never answer.
        """
        ready = answered(list(self.awaited), wait_s)
        for call in ready:
            self._check_answer(call, self.awaited.pop(call).process)
        if ready:
            return
        if gone := lost(self._seats, self._hosts):
            names = ", ".join(map(self._name, gone))
            raise HostError(f"lost during the start: {names}")
        now = time.monotonic()
        if now - self._began > self._patience.total_s:
            self._give_up(now - self._began)
        for call, awaited in list(self.awaited.items()):
            overdue = now - awaited.made_at >= self._patience.answer_s
            if overdue and awaited.attempt < self._patience.attempts:
                del self.awaited[call]
                self._replace(awaited, now)

    def kill(self) -> None:
        _kill(self.agents.values())

    def _replace(self, awaited: _Awaited, now: float) -> None:
        process, attempt = awaited.process, awaited.attempt + 1
        self._on_warning(
            f"no response from the agent of {self._name(process)} within "
            f"{self._patience.answer_s:.0f} s: killing it and starting another one "
            f"(attempt {attempt} of {self._patience.attempts})"
        )
        _kill([self.agents[process]])
        self.agents[process] = self._make(process)
        call = self.agents[process].address.remote()
        self.awaited[call] = _Awaited(process, now, attempt)

    def _make(self, process: int) -> Any:
        return _make(self._seats[process], self._python)

    def _name(self, process: int) -> str:
        return process_name(process, self._seats[process].processes_per_host)

    def _check_answer(self, call: Any, process: int) -> None:
        import ray
        from ray.exceptions import RayError

        try:
            ray.get(call)
        except RayError as error:
            raise HostError(f"no agent on {self._name(process)}: {first_line(error)}") from error

    def _give_up(self, waited_s: float) -> None:
        late = sorted(awaited.process for awaited in self.awaited.values())
        names = ", ".join(map(self._name, late))
        raise HostError(f"no agent started on {names} within {waited_s:.0f} s")


def agent_with(**options: Any) -> Any:
    """Starts an agent with more options of Ray; returns it before it is up."""
    import ray

    from launcher.gang.agent import Agent

    return ray.remote(Agent).options(max_restarts=0, max_concurrency=8, **options).remote()


def _make(seat: Seat, python: str | None) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundle = seat.resources
    return agent_with(
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        resources={k: v for k, v in bundle.items() if k not in ("CPU", "GPU")},
        runtime_env={"py_executable": shlex.quote(python)} if python else None,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            seat.placement_group, placement_group_bundle_index=seat.bundle_index
        ),
    )


def _kill(agents: Iterable[Any]) -> None:
    import ray

    for agent in agents:
        ray.kill(agent)
