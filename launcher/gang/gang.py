"""Runs a program on all hosts through one agent per process; ends all when one fails.

core/results.py interprets what the hosts report, without Ray.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from launcher.core.events import Listener
from launcher.core.results import GangResult
from launcher.gang.agent_calls import Agents
from launcher.gang.agent_pool import Member
from launcher.gang.early_standby import EarlyStandby
from launcher.gang.host_checks import ProgramCheck, run_preflight
from launcher.gang.host_program import HostProgram
from launcher.gang.monitor import GangMonitor
from launcher.gang.preflight import Seen
from launcher.gang.program_archive import archive_of
from launcher.gang.program_start import ProgramStart
from launcher.gang.program_sync import ProgramSync
from launcher.gang.run_dir_sync import Copies, log_of
from launcher.providers.ray.node_spec import HostSlot
from trainer.contract.protocol.environment import (
    JAX_COORDINATOR_ADDRESS,
    JAX_COORDINATOR_BIND_ADDRESS,
    MEGASCALE_COORDINATOR_ADDRESS,
    MEGASCALE_NUM_SLICES,
)
from trainer.contract.protocol.events import PORT_TAKEN, CheckedEvent, Event, WarningEvent

PORT_ATTEMPTS = 5


class Program(Protocol):
    """The program that runs on the hosts."""

    @property
    def failure_grace_s(self) -> float:
        """Seconds that it may take to end after it failed on another host, or lost its agent."""
        ...

    def standby_command(self, process: int, *, check: bool) -> list[str] | None:
        """Returns the command of a standby process; None when the program has none.

        It waits for its start, see `trainer.contract.protocol.start`. With `check`, it first checks
        its host and sends one `checked` event.
        """
        ...

    def command(self, process: int) -> list[str]: ...

    def environment(self, process: int) -> dict[str, str]: ...


class Gang:
    """The hosts that run an attempt, with an agent for each process, in the order of processes."""

    def __init__(
        self,
        members: Sequence[Member],
        run_dir: Path,
        listener: Listener,
        early: EarlyStandby | None = None,
        spares: Sequence[Member] = (),
    ) -> None:
        """Creates the gang.

        `early`: standby processes that have started already, for the first check. `spares`: hosts
        that get standby processes too, but run no program in this gang.
        """
        self.members = members
        per_host = 1 + max(member.local for member in members)
        self._agents = Agents((member.agent for member in members), per_host)
        self._spares = [member.agent for member in spares]
        self._spare_program: HostProgram | None = None
        """The standby program of spares, once the hosts have standby processes."""
        self.silent: set[int] = set()
        """Processes whose agents have stopped answering."""
        self._run_dir, self._listener = run_dir, listener
        all_members = [*members, *spares]
        apart = [n for n, member in enumerate(all_members) if not member.shares_run_dir]
        self._copies = Copies([member.agent for member in all_members], apart, run_dir, per_host)
        self._early = early
        self._compiled = ProgramSync(self._agents, archive_of(run_dir), self._warn)
        self._addresses: list[str] = []
        self._checked: ProgramStart | None = None
        """The start whose standby processes have checked their hosts and wait."""

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(self.members)

    @property
    def nodes(self) -> list[str]:
        """Ray ids of the hosts' nodes, in the order of processes."""
        return [member.host.node_id for member in self.members]

    def places_of(self, processes: Collection[int]) -> list[HostSlot]:
        """Returns the slots of the hosts of these processes."""
        return [self.members[process].host.place for process in processes]

    def run(
        self,
        program: Program,
        coordinator_port: int | None = None,
        monitor: GangMonitor | None = None,
    ) -> GangResult:
        """Runs the program on all hosts until all have ended; the first failure ends the others.

        A hang ends them too, once the stacks of all hosts are in their logs. All hosts receive a
        request for an orderly stop when the monitor requires it, or when one host has stopped on
        a request from outside. If the coordinator port is taken at the moment of the start, the
        program starts again with another port.

        Raises GangError when a host cannot hold a copy of the run's folder, LostError when an
        agent does not answer.
        """
        for attempt in range(PORT_ATTEMPTS):
            wanted_port = coordinator_port if attempt == 0 else None
            programs = self._started(program, self._environments(program, wanted_port))
            taken: list[Event] = []
            outcome = programs.watch(
                lambda _, event, taken=taken: _record_taken_port(event, taken),
                monitor or GangMonitor(),
                prepare_next=lambda: self._prepare(program),
            )
            if not taken or outcome.failed_process is None:
                return outcome
        return outcome

    def run_preflight(self, platform: str) -> dict[int, Seen]:
        """Runs the preflight checks on every host: its number -> result.

        Raises LostError when a host does not answer.
        """
        return run_preflight(self._agents, self._run_dir, platform)

    def check(
        self, program: Program, known: Mapping[int, CheckedEvent] | None = None
    ) -> dict[int, CheckedEvent]:
        """Starts standby processes, which check the hosts: process -> its `checked` event.

        `known`: the events of hosts that were checked for an earlier gang, which are not checked
        again. `run` starts the program in the standby processes. Raises GangError when a host
        cannot serve the job or differs from the others, LostError when one was lost meanwhile.
        """
        known = known or {}
        commands = self._standby_commands(program, check=True)
        if not commands:
            return {}
        check = ProgramCheck(self._agents, known)
        programs = self._programs()
        environments = self._environments(program, coordinator_port=None)
        all_programs = enumerate(self._host_programs(program, commands, environments))
        programs.start_standby({p: one for p, one in all_programs if p not in known}, self._early)
        outcome = programs.watch(check.on_event, GangMonitor(), until=check.is_complete)
        reports = check.reports(outcome)
        self._checked = programs
        return reports

    def add_spares(self, spares: Sequence[Member]) -> None:
        """Adds spares that have become ready while the program runs."""
        for member in spares:
            received = "" if member.shares_run_dir else self._copies.add(member.agent)
            self._spares.append(member.agent)
            if self._spare_program is not None:
                member.agent.prepare.remote(self._spare_program, received)

    def _started(self, program: Program, environments: Sequence[dict[str, str]]) -> ProgramStart:
        """Starts the program, in standby processes where there are any."""
        programs, self._checked = self._checked or self._programs(), None
        commands = [program.command(process) for process in range(self.size)]
        programs.start(self._host_programs(program, commands, environments))
        return programs

    def _prepare(self, program: Program) -> None:
        """Makes standby processes for the next attempt, on hosts that answer."""
        commands = self._standby_commands(program, check=False)
        if not commands:
            return
        environments = [program.environment(process) for process in range(self.size)]
        programs = self._host_programs(program, commands, environments)
        for agent, prepared in zip(self._agents, programs, strict=True):
            agent.prepare.remote(prepared)
        # A spare checks its host now. Until its start, it has the environment of process 0.
        checks = self._standby_commands(program, check=True)
        if not checks:
            return
        self._spare_program = self._host_programs(program, checks, environments)[0]
        for agent in self._spares:
            agent.prepare.remote(self._spare_program)

    def _standby_commands(self, program: Program, *, check: bool) -> list[list[str]]:
        """Returns the commands of all standby processes; empty when the program has none."""
        commands = [program.standby_command(p, check=check) for p in range(self.size)]
        return [command for command in commands if command is not None]

    def _programs(self) -> ProgramStart:
        parts = self._agents, self._copies, self._compiled
        return ProgramStart(*parts, self._listener, self.silent)

    def _host_programs(
        self,
        program: Program,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
    ) -> list[HostProgram]:
        """Returns each host's program, in the order of processes."""
        return [
            HostProgram(
                command,
                environment,
                log=str(self._run_dir / log_of(process, self._agents.processes_per_host)),
                cwd=str(Path.cwd()),
                grace_s=program.failure_grace_s,
                hosts=self._hosts(),
            )
            for process, (command, environment) in enumerate(
                zip(commands, environments, strict=True)
            )
        ]

    def _environments(self, program: Program, coordinator_port: int | None) -> list[dict[str, str]]:
        """Returns each process's environment: the program's own, and the coordinator's address."""
        first = self._hosts()[0]
        call = self._agents[0].listening_address.remote(coordinator_port)
        ((bound, port),) = self._agents.answers([call], [0])
        coordinator = {JAX_COORDINATOR_ADDRESS: f"{first}:{port}"}
        if bound:
            coordinator[JAX_COORDINATOR_BIND_ADDRESS] = f"{bound}:{port}"
        environments = [
            {**program.environment(process), **coordinator} for process in range(self.size)
        ]
        for environment in environments:
            if MEGASCALE_NUM_SLICES in environment:
                environment[MEGASCALE_COORDINATOR_ADDRESS] = first
        return environments

    def _warn(self, text: str) -> None:
        self._listener.on_event(WarningEvent(category="programs", message=text))

    def _hosts(self) -> list[str]:
        """Returns the addresses of all hosts, in the order of processes.

        Raises LostError when a host does not answer.
        """
        if not self._addresses:
            self._addresses = self._agents.call(lambda agent: agent.address.remote())
        return self._addresses


def _record_taken_port(event: Event, taken: list[Event]) -> None:
    if isinstance(event, WarningEvent) and event.category == PORT_TAKEN:
        taken.append(event)
