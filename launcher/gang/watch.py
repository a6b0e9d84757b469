"""Watches the programs of a gang until all have ended."""

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from launcher.core.results import Hang, ProcessExit
from launcher.gang.agent_calls import Agents
from launcher.gang.agent_ends import explain
from launcher.gang.live_requests import LiveRequests
from launcher.gang.monitor import HANG_GRACE_S, GangMonitor, Stop
from launcher.gang.program_sync import ProgramSync
from launcher.gang.run_dir_sync import Copies
from launcher.health.lost_hosts import SILENCE_S, LostHostDetector
from launcher.host.process import OutputUpdate
from launcher.providers.ray.client import answered

POLL_S = 1.0
"""Seconds for which an agent waits for output before it answers a poll."""
CHECK_INTERVAL_S = 0.25
"""Seconds between two checks for lost hosts, stop requests and hangs."""


class GangWatch:
    """The programs of one start. `run` polls the agents, and all detectors in a row."""

    def __init__(
        self,
        agents: Agents,
        copies: Copies,
        programs: ProgramSync,
        forward: Callable[[int, OutputUpdate], None],
        describe_hang: Callable[[Hang], Hang],
        lost: set[int],
    ) -> None:
        """Creates a watch of no program yet, see `follow`.

        `forward` receives what a process reports. `describe_hang` inspects the hosts and adds what
        they do to a hang, before the programs are stopped. Processes whose agents stop answering
        are added to `lost`.
        """
        self._agents, self._copies = agents, copies
        self._forward, self._describe_hang, self._lost = forward, describe_hang, lost
        self.exits: dict[int, ProcessExit] = {}
        self.hang: Hang | None = None
        self._errors: dict[int, tuple[Exception, float]] = {}
        """Errors of agents, and the monotonic seconds at which they were seen."""
        self._polls: dict[Any, int] = {}
        """Pending polls and their processes."""
        self._detectors = (
            self._find_lost_hosts,
            self._copies.fetch,
            self._stop_if_required,  # before hangs: a process that lost a peer does not hang
            self._find_hang,
            self._serve_requests,
            programs.poll,
        )
        self._requests = LiveRequests(agents)
        self._silence = LostHostDetector(time.monotonic())
        self._followed: set[int] = set()

    def follow(self, processes: Collection[int]) -> None:
        """Polls the agents of processes that have been started, and are not followed yet."""
        for process in set(processes) - self._followed:
            self._followed.add(process)
            self._silence.answered(process)
            self._poll(process)

    def run(
        self, monitor: GangMonitor, until: Callable[[], bool], prepare_next: Callable[[], None]
    ) -> None:
        """Forwards what the hosts report until all have ended; records their exits and any hang.

        Returns early once `until` holds: another call continues. `prepare_next` is called once,
        when the monitor wants standby processes.
        """
        is_prepared = False
        self._monitor = monitor
        monitor.on_start()
        self._stop, self._hang_check_at = Stop(self._agents, monitor), 0.0
        while self._polls and time.monotonic() < self._stop.give_up_at:
            for call in answered(list(self._polls), CHECK_INTERVAL_S):
                self._take(self._polls.pop(call), call)
            for detect in self._detectors:
                detect()
            if until():
                return
            if not is_prepared and monitor.wants_standby():
                is_prepared = True
                prepare_next()
        self._finish()

    def _poll(self, process: int) -> None:
        self._polls[self._agents[process].poll.remote(POLL_S)] = process

    def _take(self, process: int, call: Any) -> None:
        """Forwards the answer to a poll, and polls again unless the program is over."""
        update = _fetch(call)
        if isinstance(update, Exception):
            self._errors[process] = (update, time.monotonic())
            update = OutputUpdate(ended_ago_s=0.0, over=True)
        self._silence.answered(process)
        self._forward(process, update)
        if update.ended_ago_s is not None:
            self.exits[process] = _exit_of(update, self.exits.get(process))
            self._monitor.on_exit(process)
        if update.over:
            self._silence.forget(process)
        else:
            self._poll(process)

    def _find_lost_hosts(self) -> None:
        for process in self._silence.lost(time.monotonic()):
            self._silence.forget(process)
            self.exits.setdefault(process, _silent_exit())
            self._monitor.on_exit(process)
            self._lost.add(process)
        self._polls = {call: p for call, p in self._polls.items() if p not in self._lost}

    def _stop_if_required(self) -> None:
        self._stop.check(self.exits)

    def _serve_requests(self) -> None:
        self._requests.poll(self._monitor.new_requests())

    def _find_hang(self) -> None:
        if self._stop.begun or time.monotonic() < self._hang_check_at:
            return
        self._hang_check_at = time.monotonic() + CHECK_INTERVAL_S
        if hang := self._monitor.hang():
            self.hang = self._describe_hang(hang)
            self._stop.immediately(HANG_GRACE_S)

    def _finish(self) -> None:
        """Records the exits of programs that did not end, and the reasons of failed agents."""
        self._requests.close()
        for process in self._polls.values():
            given_up = ProcessExit(None, time.monotonic(), True, [], "it did not end")
            self.exits.setdefault(process, given_up)
        for process, (error, seen_at) in self._errors.items():
            end = explain(error, seen_at)
            self.exits[process] = replace(
                self.exits[process], lost=end.why, host_lives=end.host_lives
            )
        self._copies.finish({p for p, ended in self.exits.items() if ended.status is None})


def _fetch(call: Any) -> OutputUpdate | Exception:
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(call)
    except RayError as error:
        return error


def _exit_of(update: OutputUpdate, before: ProcessExit | None) -> ProcessExit:
    """Returns the exit of a host's program; a later update does not change the time of the end."""
    lives = update.status is None  # the agent that reports this is alive
    lost = update.lost or "the processes of its program were killed" if lives else ""
    ended_at = before.ended_at if before else time.monotonic() - (update.ended_ago_s or 0.0)
    return ProcessExit(
        update.status,
        ended_at,
        update.stopped,
        update.tail,
        lost,
        cause=update.cause,
        host_lives=lives,
    )


def _silent_exit() -> ProcessExit:
    """Returns the exit of a host that is cut off or stuck: its program no longer reports."""
    why = f"its agent has not answered for {SILENCE_S:.0f} s"
    return ProcessExit(None, time.monotonic() - SILENCE_S, lost=why)
