"""Agents that only send events: no Ray node of their own, no process, no program.

A few Ray actors answer for all of them, each host's call through Ray as a real agent's: the gang
and all that is behind it cannot notice. They send what a trainer sends in its loop.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.core.events import Listener
from launcher.gang.agent_pool import Member
from launcher.gang.connect import connected
from launcher.gang.gang import Gang
from launcher.gang.host_selection import Host
from launcher.host.process import OutputUpdate
from launcher.providers.ray.host_cluster import HostCluster
from trainer.contract.protocol.events import Event, HeartbeatEvent, StepEvent

HEARTBEAT_EVERY_S = 2.0
HOSTS_PER_ACTOR = 1024
FOR_EVER_S = 1e9


class Crowd:
    """A Ray actor that answers for the agents of many hosts, and has no programs."""

    def __init__(self, step_s: float, lasts_s: float) -> None:
        self._step_s, self._lasts_s = step_s, lasts_s
        self._reported_s: dict[int, float] = {}
        """The time up to which each host has reported its events."""
        self._beat_s: dict[int, float] = {}
        self._end_s: dict[int, float] = {}

    async def address(self, process: int) -> str:
        return "127.0.0.1"

    async def listening_address(self, process: int, wanted: int | None) -> tuple[str, int]:
        return "127.0.0.1", wanted or 1

    async def start(self, process: int, *_: object) -> None:
        self._reported_s[process] = time.time()
        self._end_s[process] = time.time() + self._lasts_s
        self._beat_s[process] = time.time() + random.uniform(0, HEARTBEAT_EVERY_S)

    async def stop(self, process: int, grace_s: float | None = None) -> None:
        self._end_s[process] = 0.0

    async def poll(self, process: int, wait_s: float) -> OutputUpdate:
        """As an agent's: at once where there is something to report, else after `wait_s`."""
        deadline = time.time() + wait_s
        while True:
            events = self._due(process)
            if time.time() >= self._end_s[process]:
                return OutputUpdate(events, status=0, ended_ago_s=0.0, over=True)
            if events or time.time() >= deadline:
                return OutputUpdate(events)
            step_at = (self._reported_s[process] // self._step_s + 1) * self._step_s
            until = min(step_at, self._beat_s[process], deadline)
            await asyncio.sleep(max(0.001, until - time.time()))

    def _due(self, process: int) -> list[Event]:
        """All hosts make their steps at once, as those do that wait for each other in each."""
        now, reported = time.time(), self._reported_s[process]
        self._reported_s[process] = now
        steps = range(int(reported // self._step_s) + 1, int(now // self._step_s) + 1)
        events: list[Event] = [
            StepEvent(step=step, time=step * self._step_s, loss=1.0) for step in steps
        ]
        while self._beat_s[process] <= now:
            events.append(
                HeartbeatEvent(
                    time=self._beat_s[process],
                    phase="train",
                    host_time_s=0.001,
                    cpu_probe_s=0.001,
                    step_time_s=self._step_s,
                )
            )
            self._beat_s[process] += HEARTBEAT_EVERY_S
        return events


class Seat:
    """One host of a crowd: what the gang takes for its agent."""

    def __init__(self, crowd: Any, process: int) -> None:
        self._crowd, self._process = crowd, process

    def __getattr__(self, method: str) -> "Call":
        return Call(getattr(self._crowd, method), self._process)


@dataclass
class Call:
    """A method of an agent, to be called through Ray."""

    method: Any
    process: int

    def remote(self, *arguments: object) -> Any:
        return self.method.remote(self.process, *arguments)


@contextmanager
def fed(
    hosts: HostCluster,
    processes: int,
    run_dir: Path,
    listener: Listener,
    step_s: float = 1.0,
    lasts_s: float = FOR_EVER_S,
) -> Iterator[Gang]:
    """A gang of them, which end after `lasts_s` or when they are asked to."""
    with connected(hosts, run_dir, listener):
        import ray  # not before: it reads how it is let in

        actor = ray.remote(Crowd).options(num_cpus=0, max_concurrency=4 * HOSTS_PER_ACTOR)
        crowds: list[Any] = [
            actor.remote(step_s, lasts_s) for _ in range(0, processes, HOSTS_PER_ACTOR)
        ]
        ray.get([crowd.address.remote(0) for crowd in crowds])
        seats = [Seat(crowds[p // HOSTS_PER_ACTOR], p) for p in range(processes)]
        members = [Member(seat, Host("", process)) for process, seat in enumerate(seats)]
        yield Gang(members, run_dir, listener)
        for crowd in crowds:
            ray.kill(crowd)
