"""One start of the programs of a gang: sends the run's folder, starts them, forwards reports.

Some of the programs may be standby processes: they are watched while they check their hosts, wait,
and are watched again from the start of all.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from launcher.core.events import HangEvent, Listener
from launcher.core.results import GangResult, Hang, first_failure
from launcher.gang.agent_calls import Agents, GangError, collect_stacks
from launcher.gang.early_standby import EarlyStandby
from launcher.gang.host_program import HostProgram
from launcher.gang.monitor import GangMonitor
from launcher.gang.program_sync import ProgramSync
from launcher.gang.run_dir_sync import Copies
from launcher.gang.watch import GangWatch
from launcher.health.stacks import innermost
from launcher.host.process import OutputUpdate
from trainer.contract.protocol.events import (
    PEER_LOST,
    REWOUND,
    STALE,
    WRONG_HOST,
    CompiledEvent,
    ErrorEvent,
    Event,
    InitializedEvent,
    StartedEvent,
    WarningEvent,
)

FINAL_REPORTS = (PEER_LOST, REWOUND, STALE, WRONG_HOST)
"""Categories of a last report that say why all hosts have ended."""


class ProgramStart:
    """One start of a program on all hosts."""

    def __init__(
        self,
        agents: Agents,
        copies: Copies,
        compiled: ProgramSync,
        listener: Listener,
        lost: set[int],
    ) -> None:
        """Creates the start. Processes whose agents stop answering are added to `lost`."""
        self._agents, self._copies, self._compiled = agents, copies, compiled
        self._listener = listener
        self._on_event: Callable[[int, Event], None] = lambda *_: None
        self._watch = GangWatch(agents, copies, compiled, self._forward, self._describe_hang, lost)
        self._has_folder = False
        """Whether the hosts have the files of this attempt."""
        self._final_reports: dict[int, str] = {}
        """The category of the last `peer_lost` or `stale` report of each process."""
        self._initializing: set[int] = set()
        """Processes that have started and are not yet connected to the others."""

    def start(self, programs: Sequence[HostProgram]) -> None:
        """Starts the program of each host, in the standby process that waits for it, if any.

        Raises GangError when a host cannot hold a copy of the run's folder, LostError when an
        agent does not answer.
        """
        if not self._has_folder:
            self._send_folder()
        self._compiled.send(dict(enumerate(programs)))
        self._compiled.finish()
        starts = [
            agent.start.remote(program)
            for agent, program in zip(self._agents, programs, strict=True)
        ]
        self._agents.answers(starts, range(len(starts)))
        self._watch.follow(range(len(starts)))

    def start_standby(
        self, programs: Mapping[int, HostProgram], early: EarlyStandby | None
    ) -> None:
        """Starts the standby processes of some hosts, or takes over those that have started early.

        Raises what `start` raises.
        """
        self._send_folder()
        self._compiled.send(programs)
        starts = [
            self._agents[process].start_standby.remote(program, early and early.offer(process))
            for process, program in programs.items()
        ]
        self._agents.answers(starts, list(programs))
        if early:
            early.close()
        self._watch.follow(programs)

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
        self._on_event, watch = on_event, self._watch
        watch.run(monitor, until, prepare_next)
        exits = {
            process: replace(
                ended,
                final_report=self._final_reports.get(process, ""),
                initializing=process in self._initializing,
            )
            for process, ended in watch.exits.items()
        }
        return GangResult(exits, first_failure(exits), watch.hang, self._agents.processes_per_host)

    def _send_folder(self) -> None:
        """Sends the run's folder. Raises GangError with the hosts that cannot hold a copy."""
        self._has_folder = True
        sent = self._copies.send()
        problems = self._agents.answers(
            [call for _, call in sent], [process for process, _ in sent]
        )
        failures = [
            f"{self._agents.name_of(process)}: {why}"
            for (process, _), why in zip(sent, problems, strict=True)
            if why
        ]
        if failures:
            suspects = [process for (process, _), why in zip(sent, problems, strict=True) if why]
            raise GangError("; ".join(failures), suspects)

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
            case WarningEvent() | ErrorEvent() if event.category in FINAL_REPORTS:
                self._final_reports[process] = event.category
            case StartedEvent():
                self._initializing.add(process)
            case InitializedEvent():
                self._initializing.discard(process)
            case CompiledEvent():
                self._compiled.has_compiled(process)
            case _:
                pass

    def _describe_hang(self, hang: Hang) -> Hang:
        """Logs the stacks of every thread on every host; reports and returns the hang."""
        process = hang.behind[0].process
        frames = innermost(collect_stacks(self._agents).get(process, ""))
        hang = replace(hang, doing=" < ".join(frames))
        self._listener.on_event(HangEvent(time=time.time(), reason=str(hang)))
        return hang
