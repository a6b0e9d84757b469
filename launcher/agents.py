"""One agent per host of a reservation: made, waited for, and made anew where it stays away."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.outcome import host_name
from launcher.providers.hosts import ProviderError
from launcher.reservation import Reservation, missing
from trainer.spec.plan import World

LOOK_S = 0.5


@dataclass(frozen=True)
class Patience:
    """How long an agent may take. Four come up in 3 s on two idle cores."""

    answer_s: float = 45.0
    """Of one agent: longer than Ray gives a new process to register, so that Ray heals first."""
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
) -> list[Any]:
    """One actor per bundle, all of them up, in the order of processes.

    An agent that does not answer is killed and made anew in its bundle. Raises ProviderError with
    the hosts whose agents never do.
    """
    agents = [_make(reservation, process) for process in range(world.processes)]
    try:
        _wait_for(agents, world, reservation, on_status, on_warning, patience)
    except BaseException:
        _kill(agents)
        raise
    return agents


def _make(reservation: Reservation, process: int) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from launcher.agent import Agent

    bundle = dict(reservation.bundle)
    options = ray.remote(Agent).options(
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        resources={k: v for k, v in bundle.items() if k not in ("CPU", "GPU")},
        max_restarts=0,
        max_concurrency=4,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            reservation.placement_group, placement_group_bundle_index=process
        ),
    )
    return options.remote(process)


def _wait_for(
    agents: list[Any],
    world: World,
    reservation: Reservation,
    on_status: Callable[[str], None],
    on_warning: Callable[[str], None],
    patience: Patience,
) -> None:
    """Until all agents answer; replaces those in `agents` that do not."""
    import ray

    began = time.monotonic()
    calls = {agent.address.remote(): _Awaited(p, began) for p, agent in enumerate(agents)}
    while calls:
        on_status(f"{len(agents) - len(calls)} of {len(agents)} agents are up")
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=LOOK_S)
        for call in ready:
            _check_answer(call, calls.pop(call).process)
        if ready:
            continue
        if gone := missing(world):
            raise ProviderError(f"a host was lost: {gone}")
        now = time.monotonic()
        if now - began > patience.total_s:
            _give_up(calls.values(), now - began)
        for call, awaited in list(calls.items()):
            if now - awaited.made_at < patience.answer_s or awaited.attempt == patience.attempts:
                continue
            del calls[call]
            process, attempt = awaited.process, awaited.attempt + 1
            on_warning(
                f"the agent of {host_name(process)} has not answered for "
                f"{patience.answer_s:.0f} s: it is killed and started anew "
                f"(attempt {attempt} of {patience.attempts})"
            )
            _kill([agents[process]])
            agents[process] = _make(reservation, process)
            calls[agents[process].address.remote()] = _Awaited(process, now, attempt)
    on_status(f"{len(agents)} of {len(agents)} agents are up")


def _check_answer(call: Any, process: int) -> None:
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(call)
    except RayError as error:
        line = str(error).strip().splitlines()[0]
        raise ProviderError(f"no agent on {host_name(process)}: {line}") from error


def _give_up(awaited: Any, waited_s: float) -> None:
    names = ", ".join(host_name(process) for process in sorted(a.process for a in awaited))
    raise ProviderError(f"no agent came up on {names} in {waited_s:.0f} s")


def _kill(agents: Sequence[Any]) -> None:
    import ray

    for agent in agents:
        ray.kill(agent)
