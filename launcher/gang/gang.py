"""Runs a program on all hosts through one agent per host; ends all of them when one fails.

core/results.py interprets what the hosts report, without Ray.
"""

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from launcher.core.errors import JobError
from launcher.core.events import HangEvent, Listener
from launcher.core.formatting import host_name
from launcher.core.results import (
    GangResult,
    Hang,
    find_outliers,
    first_failure,
)
from launcher.gang.agent_ends import explain
from launcher.gang.monitor import ENDING_TIMEOUT_S, GRACE_S, GangMonitor
from launcher.gang.preflight import Seen
from launcher.gang.run_dir_sync import Copies, log_of
from launcher.gang.watch import GangWatch
from launcher.health.stacks import innermost
from launcher.host.process import OutputUpdate
from launcher.providers.ray.node_spec import HostSlot
from trainer.contract.protocol.environment import (
    JAX_COORDINATOR_ADDRESS,
    JAX_COORDINATOR_BIND_ADDRESS,
    MEGASCALE_COORDINATOR_ADDRESS,
    MEGASCALE_NUM_SLICES,
)
from trainer.contract.protocol.events import (
    PEER_LOST,
    PORT_TAKEN,
    STALE,
    CheckedEvent,
    ErrorEvent,
    Event,
    InitializedEvent,
    StartedEvent,
    WarningEvent,
)

ANSWER_TIMEOUT_S = 60.0
"""Seconds for a call that an agent answers immediately: find a port, start a process."""
STACKS_TIMEOUT_S, STACKS_DELAY_S = 10.0, 0.5
"""Seconds for a host to dump the stacks of its program, and for the dump to arrive here."""
PORT_ATTEMPTS = 5


class GangError(JobError):
    """The hosts cannot run the program together; the message names the host and the reason."""

    def __init__(self, message: str, suspects: Collection[int] = ()) -> None:
        """Creates the error. `suspects`: the processes whose hosts are the reason."""
        super().__init__(message)
        self.suspects = suspects


class LostError(GangError):
    """A host no longer answers."""


class AgentError(GangError):
    """The agent of a host failed, not the host itself."""


class Program(Protocol):
    """The program that runs on the hosts."""

    def check_command(self, process: int) -> list[str] | None:
        """Returns a command that checks the host before the start and sends one `checked` event.

        Returns None when there is no check.
        """
        ...

    def command(self, process: int) -> list[str]: ...

    def environment(self, process: int) -> dict[str, str]: ...


class Gang:
    """One agent on each host of a reservation, in the order of processes."""

    def __init__(
        self,
        agents: Sequence[Any],
        places: Sequence[HostSlot],
        nodes: frozenset[str],
        run_dir: Path,
        listener: Listener,
        apart: Collection[int] = (),
    ) -> None:
        """Creates the gang. `apart`: processes whose hosts do not share the run's folder."""
        self._agents, self._places = agents, places
        self.nodes = nodes
        """Ray ids of the hosts' nodes."""
        self._lost: set[int] = set()
        """Processes whose agents do not answer."""
        self._run_dir, self._listener = run_dir, listener
        self._copies = Copies(agents, apart, run_dir)
        self._addresses: list[str] = []

    @property
    def size(self) -> int:
        """The number of hosts."""
        return len(self._agents)

    @property
    def silent_places(self) -> list[HostSlot]:
        """Slots of the hosts that have stopped answering."""
        return self.places_of(self._lost)

    def places_of(self, processes: Collection[int]) -> list[HostSlot]:
        """Returns the slots of the hosts of these processes."""
        return [self._places[process] for process in processes]

    def run(
        self,
        program: Program,
        coordinator_port: int | None = None,
        attendant: GangMonitor | None = None,
    ) -> GangResult:
        """Runs the program on all hosts until all have ended; the first failure ends the others.

        A hang ends them too, once the stacks of all hosts are in their logs. All hosts receive a
        request for an orderly stop when the attendant requires it, or when one host has stopped on
        a request from outside. If the coordinator port is taken at the moment of the start, the
        program starts again with another port.
        """
        attendant = attendant or GangMonitor()
        for attempt in range(PORT_ATTEMPTS):
            wanted_port = coordinator_port if attempt == 0 else None
            environments = self._environments(program, wanted_port)
            commands = [program.command(process) for process in range(len(self._agents))]
            taken: list[Event] = []
            outcome = self._run(
                commands, environments, lambda _, e, t=taken: _note_taken_port(e, t), attendant
            )
            if not taken or outcome.failed_process is None:
                return outcome
        return outcome

    def look(self, platform: str) -> dict[int, Seen]:
        """Runs the preflight checks on every host: process -> result.

        Raises LostError when a host does not answer.
        """
        asked_s = time.time()
        looks = self._ask(lambda agent: agent.look.remote(str(self._run_dir), platform))
        half_s = (time.time() - asked_s) / 2
        (port,) = _answers([self._agents[0].listen.remote()], [0])
        first = looks[0].address
        unreachable = self._ask(lambda agent: agent.unreachable.remote(first, port))
        return {
            process: Seen(one, _ahead(one.time_s, asked_s + half_s, half_s), why)
            for process, (one, why) in enumerate(zip(looks, unreachable, strict=True))
        }

    def check(self, program: Program) -> dict[int, CheckedEvent]:
        """Runs the program's check on every host: process -> its `checked` event.

        Raises GangError when a host cannot serve the job or differs from the others, LostError
        when one was lost meanwhile.
        """
        processes = range(len(self._agents))
        commands = [program.check_command(process) for process in processes]
        if any(command is None for command in commands):
            return {}
        reports: dict[int, CheckedEvent] = {}
        errors: dict[int, str] = {}

        def note(process: int, event: Event) -> None:
            if isinstance(event, CheckedEvent):
                reports[process] = event
            elif isinstance(event, ErrorEvent):
                errors[process] = str(event.message)

        outcome = self._run(
            [command or [] for command in commands],
            self._environments(program, coordinator_port=None),
            note,
            GangMonitor(),
        )
        if outcome.lost:
            raise LostError(outcome.reason)
        if not outcome.ok:
            raise CheckError(outcome, errors.get(outcome.failed_process or 0))
        compare(reports)
        return reports

    def end(self) -> None:
        """Ends everything that still runs on the hosts; waits for it up to ENDING_TIMEOUT_S."""
        import ray

        answering = [a for process, a in enumerate(self._agents) if process not in self._lost]
        calls = [agent.stop.remote() for agent in answering]
        ray.wait(calls, num_returns=len(calls), timeout=ENDING_TIMEOUT_S)
        for agent in self._agents:
            ray.kill(agent)

    def _ask(self, call: Callable[[Any], Any]) -> list[Any]:
        """Calls all agents; returns their answers in the order of processes.

        Raises LostError when an agent does not answer.
        """
        return _answers([call(agent) for agent in self._agents], range(len(self._agents)))

    def _environments(self, program: Program, coordinator_port: int | None) -> list[dict[str, str]]:
        """Returns each process's environment: the program's own, and the coordinator's address."""
        first = self._hosts()[0]
        call = self._agents[0].listening_address.remote(coordinator_port)
        ((bound, port),) = _answers([call], [0])
        coordinator = {JAX_COORDINATOR_ADDRESS: f"{first}:{port}"}
        if bound:
            coordinator[JAX_COORDINATOR_BIND_ADDRESS] = f"{bound}:{port}"
        environments = [
            {**program.environment(process), **coordinator} for process in range(len(self._agents))
        ]
        for environment in environments:
            if MEGASCALE_NUM_SLICES in environment:
                environment[MEGASCALE_COORDINATOR_ADDRESS] = first
        return environments

    def _hosts(self) -> list[str]:
        """Returns the addresses of all hosts, in the order of processes.

        Raises LostError when a host does not answer.
        """
        if not self._addresses:
            self._addresses = self._ask(lambda agent: agent.address.remote())
        return self._addresses

    def _run(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        note: Callable[[int, Event], None],
        attendant: GangMonitor,
    ) -> GangResult:
        self._send_folder()
        hosts = self._hosts()
        starts = [
            agent.start.remote(
                command, environment, str(self._log(process)), str(Path.cwd()), GRACE_S, hosts
            )
            for process, (agent, command, environment) in enumerate(
                zip(self._agents, commands, environments, strict=True)
            )
        ]
        _answers(starts, range(len(starts)))
        said: dict[int, str] = {}
        initializing: set[int] = set()

        def listen(process: int, event: Event) -> None:
            note(process, event)
            match event:
                case WarningEvent() | ErrorEvent() if event.category in (PEER_LOST, STALE):
                    said[process] = event.category
                case StartedEvent():
                    initializing.add(process)
                case InitializedEvent():
                    initializing.discard(process)
                case _:
                    pass

        watch = GangWatch(
            self._agents,
            self._copies,
            attendant,
            lambda process, update: self._forward(process, update, listen),
            self._describe_hang,
            self._lost,
        )
        watch.run()
        exits = {
            p: replace(ended, said=said.get(p, ""), initializing=p in initializing)
            for p, ended in watch.exits.items()
        }
        return GangResult(exits, first_failure(exits), watch.hang)

    def _send_folder(self) -> None:
        """Sends the run's folder. Raises GangError with the hosts that cannot hold a copy."""
        sent = self._copies.send()
        problems = _answers([call for _, call in sent], [process for process, _ in sent])
        failures = [
            f"{host_name(p)}: {why}" for (p, _), why in zip(sent, problems, strict=True) if why
        ]
        if failures:
            suspects = [process for (process, _), why in zip(sent, problems, strict=True) if why]
            raise GangError("; ".join(failures), suspects)

    def _describe_hang(self, hang: Hang) -> Hang:
        """Logs the stacks of every thread on every host; reports and returns the hang."""
        process = hang.behind[0].process
        frames = innermost(self._collect_stacks().get(process, ""))
        hang = replace(hang, doing=" < ".join(frames))
        self._listener.on_event(HangEvent(time=time.time(), reason=str(hang)))
        return hang

    def _collect_stacks(self) -> dict[int, str]:
        """Returns process -> its stacks, without processes that do not answer in time."""
        import ray

        calls = [agent.stacks.remote(STACKS_TIMEOUT_S) for agent in self._agents]
        ray.wait(calls, num_returns=len(calls), timeout=STACKS_TIMEOUT_S + STACKS_DELAY_S)
        answers = {process: _stacks_of(call) for process, call in enumerate(calls)}
        return {process: text for process, text in answers.items() if text}

    def _forward(
        self, process: int, batch: OutputUpdate, note: Callable[[int, Event], None]
    ) -> None:
        for event in batch.events:
            note(process, event)
            # A user's program may send any number of a process.
            self._listener.on_event(event.stamped(process=process))
        for line in batch.lines:
            self._listener.on_line(process, line)

    def _log(self, process: int) -> Path:
        return self._run_dir / log_of(process)


class CheckError(GangError):
    """A host cannot serve the job; `outcome` has its exit code and last lines."""

    def __init__(self, outcome: GangResult, message: str | None) -> None:
        self.outcome = outcome
        process = outcome.failed_process or 0
        text = f"{host_name(process)}: {message}" if message else outcome.reason
        super().__init__(text, [process])


def compare(reports: Mapping[int, CheckedEvent]) -> None:
    """Raises GangError unless all hosts have the same versions, code and data."""
    odd, suspects = find_outliers(
        {process: _compared(report) for process, report in reports.items()}
    )
    if odd:
        text = "the hosts differ: " + "; ".join(odd) + ". Install the same on all of them."
        raise GangError(text, suspects)


def _compared(report: CheckedEvent) -> dict[str, object]:
    """Returns the values that must be the same on all hosts."""
    return {
        "versions": report.versions,
        "code": report.code,
        "corpus_sha256": report.corpus_sha256,
    }


def _ahead(clock_s: float, here_s: float, within_s: float) -> float:
    """Returns the least lead of a host's clock over this machine's; negative: it is behind.

    The host read its clock at `here_s` of this machine's, give or take `within_s`.
    """
    ahead_s = clock_s - here_s
    return math.copysign(max(0.0, abs(ahead_s) - within_s), ahead_s)


def _answers(calls: Sequence[Any], processes: Sequence[int]) -> list[Any]:
    """Returns the answers of the agents of `processes`. Raises LostError with those too late."""
    import ray

    _, late = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_TIMEOUT_S)
    if late:
        names = {host_name(processes[calls.index(call)]) for call in late}
        raise LostError(
            f"no answer from {', '.join(sorted(names))} within {ANSWER_TIMEOUT_S:.0f} s"
        )
    return [_answer(call, process) for call, process in zip(calls, processes, strict=True)]


def _answer(call: Any, process: int) -> Any:
    """Returns an agent's answer. Raises LostError, or AgentError when its host is alive."""
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(call)
    except RayError as error:
        end = explain(error)
        kind = AgentError if end.host_lives else LostError
        raise kind(f"{host_name(process)}: {end.why}", [process]) from error


def _stacks_of(call: Any) -> str:
    """Returns the stacks that a host has sent by now, or "" when it has not."""
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(call, timeout=0)
    except RayError:
        return ""


def _note_taken_port(event: Event, taken: list[Event]) -> None:
    if isinstance(event, WarningEvent) and event.category == PORT_TAKEN:
        taken.append(event)
