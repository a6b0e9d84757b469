"""One start of the programs of a gang: sends the run's folder, starts them, forwards reports.

The programs may be standby processes: they are watched while they check their hosts, wait, and are
watched again from their start.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.core.events import HangEvent, Listener
from launcher.core.formatting import host_name
from launcher.core.results import GangResult, Hang, first_failure
from launcher.gang.agent_calls import GangError, collect_stacks, wait_for_answers
from launcher.gang.early_standby import EarlyStandby
from launcher.gang.host_program import HostProgram
from launcher.gang.monitor import GangMonitor
from launcher.gang.run_dir_sync import Copies
from launcher.gang.watch import GangWatch
from launcher.health.stacks import innermost
from launcher.host.process import OutputUpdate
from trainer.contract.protocol.events import (
    PEER_LOST,
    STALE,
    ErrorEvent,
    Event,
    InitializedEvent,
    StartedEvent,
    WarningEvent,
)


class ProgramStart:
    """One start of a program on all hosts."""

    def __init__(
        self,
        agents: Sequence[Any],
        copies: Copies,
        listener: Listener,
        lost: set[int],
    ) -> None:
        """Creates the start. Processes whose agents stop answering are added to `lost`."""
        self._agents, self._copies = agents, copies
        self._listener, self._lost = listener, lost
        self._on_event: Callable[[int, Event], None] = lambda *_: None
        self._watch: GangWatch | None = None
        self.is_waiting = False
        """Whether the programs are standby processes that wait for their start."""
        self._final_reports: dict[int, str] = {}
        """The category of the last `peer_lost` or `stale` report of each process."""
        self._initializing: set[int] = set()
        """Processes that have started and are not yet connected to the others."""

    def start(self, programs: Sequence[HostProgram]) -> None:
        """Starts the program of each host.

        Raises GangError when a host cannot hold a copy of the run's folder, LostError when an
        agent does not answer.
        """
        self._send_folder()
        starts = [agent.start.remote(program) for agent, program in self._pairs(programs)]
        wait_for_answers(starts, range(len(starts)))

    def start_standby(self, programs: Sequence[HostProgram], early: EarlyStandby | None) -> None:
        """Starts standby processes, or takes over those that have started early.

        Raises what `start` raises.
        """
        self._send_folder()
        starts = [
            agent.start_standby.remote(program, early and early.offer(process))
            for process, (agent, program) in enumerate(self._pairs(programs))
        ]
        wait_for_answers(starts, range(len(starts)))
        if early:
            early.close()
        self.is_waiting = True

    def begin(self, environments: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> None:
        """Lets the standby processes start. Raises LostError when an agent does not answer."""
        begins = [
            agent.begin.remote(environment, hosts)
            for agent, environment in zip(self._agents, environments, strict=True)
        ]
        wait_for_answers(begins, range(len(begins)))
        self.is_waiting = False

    def prepare(self, programs: Sequence[HostProgram]) -> None:
        """Makes a standby process on each host for its next start; waits for none of them."""
        for agent, program in self._pairs(programs):
            agent.prepare.remote(program)

    def watch(
        self,
        on_event: Callable[[int, Event], None],
        monitor: GangMonitor,
        until: Callable[[], bool] = lambda: False,
        prepare_next: Callable[[], None] = lambda: None,
    ) -> GangResult:
        """Waits until all programs have ended, or `until` holds.

        `on_event` receives each event with its process. `prepare_next` is called once, when the
        monitor wants standby processes for the next attempt.
        """
        self._on_event = on_event
        self._watch = watch = self._watch or GangWatch(
            self._agents, self._copies, self._forward, self._describe_hang, self._lost
        )
        watch.run(monitor, until, prepare_next)
        exits = {
            process: replace(
                ended,
                final_report=self._final_reports.get(process, ""),
                initializing=process in self._initializing,
            )
            for process, ended in watch.exits.items()
        }
        return GangResult(exits, first_failure(exits), watch.hang)

    def _send_folder(self) -> None:
        """Sends the run's folder. Raises GangError with the hosts that cannot hold a copy."""
        sent = self._copies.send()
        problems = wait_for_answers([call for _, call in sent], [process for process, _ in sent])
        failures = [
            f"{host_name(p)}: {why}" for (p, _), why in zip(sent, problems, strict=True) if why
        ]
        if failures:
            suspects = [process for (process, _), why in zip(sent, problems, strict=True) if why]
            raise GangError("; ".join(failures), suspects)

    def _pairs(self, programs: Sequence[HostProgram]) -> list[tuple[Any, HostProgram]]:
        return list(zip(self._agents, programs, strict=True))

    def _forward(self, process: int, update: OutputUpdate) -> None:
        for event in update.events:
            self._record(process, event)
            self._on_event(process, event)
            # A user's program may send any number of a process.
            self._listener.on_event(event.stamped(process=process))
        for line in update.lines:
            self._listener.on_line(process, line)

    def _record(self, process: int, event: Event) -> None:
        match event:
            case WarningEvent() | ErrorEvent() if event.category in (PEER_LOST, STALE):
                self._final_reports[process] = event.category
            case StartedEvent():
                self._initializing.add(process)
            case InitializedEvent():
                self._initializing.discard(process)
            case _:
                pass

    def _describe_hang(self, hang: Hang) -> Hang:
        """Logs the stacks of every thread on every host; reports and returns the hang."""
        process = hang.behind[0].process
        frames = innermost(collect_stacks(self._agents).get(process, ""))
        hang = replace(hang, doing=" < ".join(frames))
        self._listener.on_event(HangEvent(time=time.time(), reason=str(hang)))
        return hang
