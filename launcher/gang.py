"""One agent per host, as one: start a program on all of them, watch, end all when one fails.

What is decided from what the hosts report stands in outcome.py, without Ray.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from launcher.outcome import ON_REQUEST, Exit, Outcome, first_failure, host_name, odd_ones
from launcher.program import Batch

Event = dict[str, Any]
ANSWER_TIMEOUT_S = 60.0
"""For what an agent does at once: find a port, start a process."""
SILENCE_TIMEOUT_S = 300.0
"""A program that sends a heartbeat every 2 s has not been heard of for so long: it is stuck."""
GRACE_S = 2.0
ENDING_TIMEOUT_S = 20.0
POLL_S, LOOK_S = 1.0, 0.5
PORT_ATTEMPTS = 5
COMPARED = ("versions", "code", "corpus_sha256")


class GangError(Exception):
    """The hosts cannot run the program together; says which one and why."""


class Program(Protocol):
    """What runs on the hosts."""

    def check_command(self, process: int) -> list[str] | None:
        """A look at the host before the start; reports one `checked` event. None: no look."""
        ...

    def command(self, process: int) -> list[str]: ...

    def environment(self, process: int) -> dict[str, str]: ...


class Gang:
    """One agent on each host of a reservation, in the order of processes."""

    def __init__(
        self,
        agents: Sequence[Any],
        run_dir: Path,
        on_event: Callable[[Event], None],
        on_line: Callable[[int, str], None],
    ) -> None:
        self._agents = agents
        self._run_dir = run_dir
        self._on_event, self._on_line = on_event, on_line

    def run(
        self,
        program: Program,
        coordinator_port: int | None = None,
        stop_asked: Callable[[], bool] = lambda: False,
        grace_s: float = GRACE_S,
    ) -> Outcome:
        """Run the program on all hosts until all have ended; the first failure ends the others.

        Once `stop_asked` says so, or one host stopped on a request of its own, all are asked to
        stop and have `grace_s` for it. A coordinator port that was taken in the moment
        of the start is replaced by another one.
        """
        for attempt in range(PORT_ATTEMPTS):
            wanted_port = coordinator_port if attempt == 0 else None
            environments = self._environments(program, wanted_port)
            commands = [program.command(process) for process in range(len(self._agents))]
            taken: list[Event] = []
            stop = _Stop(self._agents, grace_s, stop_asked)
            outcome = self._run(
                commands, environments, lambda e, t=taken: _note_taken_port(e, t), stop
            )
            if not taken or outcome.failed_process is None:
                return outcome
        return outcome

    def check(self, program: Program) -> dict[int, Event]:
        """Look at every host: process -> its `checked` event.

        Raises GangError where a host cannot serve the job or differs from the others.
        """
        processes = range(len(self._agents))
        commands = [program.check_command(process) for process in processes]
        if any(command is None for command in commands):
            return {}
        reports: dict[int, Event] = {}
        errors: dict[int, str] = {}

        def note(event: Event) -> None:
            if event["event"] == "checked":
                reports[event["process"]] = event
            elif event["event"] == "error":
                errors[event["process"]] = str(event.get("message"))

        outcome = self._run(
            [command or [] for command in commands],
            self._environments(program, coordinator_port=None),
            note,
            _Stop(self._agents, GRACE_S),
        )
        if not outcome.ok:
            raise CheckError(outcome, errors.get(outcome.failed_process or 0))
        compare(reports)
        return reports

    def end(self) -> None:
        """End whatever still runs on the hosts; waits for it, within limits."""
        import ray

        calls = [agent.stop.remote() for agent in self._agents]
        ray.wait(calls, num_returns=len(calls), timeout=ENDING_TIMEOUT_S)
        for agent in self._agents:
            ray.kill(agent)

    def _environments(self, program: Program, coordinator_port: int | None) -> list[dict[str, str]]:
        """Of every process: the program's own, and where the first one listens."""
        address = self._coordinator(coordinator_port)
        return [
            {**program.environment(process), "JAX_COORDINATOR_ADDRESS": address}
            for process in range(len(self._agents))
        ]

    def _coordinator(self, wanted_port: int | None) -> str:
        first = self._agents[0]
        calls = [first.address.remote(), first.free_port.remote(wanted_port)]
        address, port = _answers(calls, [0, 0])
        return f"{address}:{port}"

    def _run(
        self,
        commands: Sequence[Sequence[str]],
        environments: Sequence[Mapping[str, str]],
        note: Callable[[Event], None],
        stop: "_Stop",
    ) -> Outcome:
        starts = [
            agent.start.remote(
                command, environment, str(self._log(process)), str(Path.cwd()), GRACE_S
            )
            for process, (agent, command, environment) in enumerate(
                zip(self._agents, commands, environments, strict=True)
            )
        ]
        _answers(starts, range(len(starts)))
        exits = self._watch(note, stop)
        return Outcome(exits, first_failure(exits))

    def _watch(self, note: Callable[[Event], None], stop: "_Stop") -> dict[int, Exit]:
        """Forward what the hosts say until all have ended; process -> its end."""
        import ray

        exits: dict[int, Exit] = {}
        polls = {agent.poll.remote(POLL_S): p for p, agent in enumerate(self._agents)}
        heard = dict.fromkeys(polls.values(), time.monotonic())
        while polls and time.monotonic() < stop.give_up_at:
            ready, _ = ray.wait(list(polls), num_returns=1, timeout=LOOK_S)
            for reference in ready:
                process = polls.pop(reference)
                batch = _fetch(reference)
                self._forward(process, batch, note)
                if batch.events or batch.lines:
                    heard[process] = time.monotonic()
                if batch.ended_at is not None:
                    exits[process] = _exit(batch)
                if not batch.over:
                    polls[self._agents[process].poll.remote(POLL_S)] = process
            self._note_silence(heard, exits)
            stop.look(exits)
        for process in polls.values():
            exits.setdefault(process, Exit(None, time.time(), True, [], "it did not end"))
        return exits

    def _forward(self, process: int, batch: Batch, note: Callable[[Event], None]) -> None:
        for event in batch.events:
            event.setdefault("process", process)
            note(event)
            self._on_event(event)
        for line in batch.lines:
            self._on_line(process, line)

    def _note_silence(self, heard: Mapping[int, float], exits: dict[int, Exit]) -> None:
        """A host that says nothing for too long counts as lost."""
        now = time.monotonic()
        for process, last in heard.items():
            if process not in exits and now - last > SILENCE_TIMEOUT_S:
                why = f"nothing was heard of it for {SILENCE_TIMEOUT_S:.0f} s"
                exits[process] = Exit(None, time.time(), lost=why)

    def _log(self, process: int) -> Path:
        return self._run_dir / "logs" / f"{host_name(process)}.log"


class _Stop:
    """Ends the programs of a gang: in order when that is asked for, at once when one fails."""

    def __init__(
        self, agents: Sequence[Any], grace_s: float, asked: Callable[[], bool] = lambda: False
    ) -> None:
        self.give_up_at = float("inf")
        self._agents, self._grace_s, self._asked = agents, grace_s, asked
        self._in_order = self._at_once = False

    def look(self, exits: Mapping[int, Exit]) -> None:
        """Act on what the hosts' ends and the user say now."""
        if self._at_once:
            return
        if not all(ended.in_order for ended in exits.values()):
            self._at_once = True
            self._stop(None, ENDING_TIMEOUT_S)
        elif not self._in_order and (self._asked() or _is_stopping(exits)):
            self._in_order = True
            self._stop(self._grace_s, self._grace_s + ENDING_TIMEOUT_S)

    def _stop(self, grace_s: float | None, timeout_s: float) -> None:
        self.give_up_at = time.monotonic() + timeout_s
        for agent in self._agents:
            agent.stop.remote(grace_s)


class CheckError(GangError):
    """A host cannot serve the job; `outcome` has its exit code and last lines."""

    def __init__(self, outcome: Outcome, message: str | None) -> None:
        self.outcome = outcome
        process = outcome.failed_process or 0
        super().__init__(f"{host_name(process)}: {message}" if message else outcome.reason)


def compare(reports: Mapping[int, Event]) -> None:
    """Raise GangError unless all hosts have the same versions, code and data."""
    odd = odd_ones({p: {k: r.get(k) for k in COMPARED} for p, r in reports.items()})
    if odd:
        raise GangError(
            "the hosts are not alike: " + "; ".join(odd) + ". Install the same on all of them."
        )


def _answers(calls: Sequence[Any], processes: Sequence[int]) -> list[Any]:
    """What the agents of `processes` answered. Raises GangError with those that did not in time."""
    import ray
    from ray.exceptions import RayError

    _, late = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_TIMEOUT_S)
    if late:
        names = {host_name(processes[calls.index(call)]) for call in late}
        raise GangError(f"no answer from {', '.join(sorted(names))} in {ANSWER_TIMEOUT_S:.0f} s")
    try:
        return ray.get(list(calls))
    except RayError as error:
        raise GangError(f"an agent failed: {str(error).strip().splitlines()[0]}") from error


def _fetch(reference: Any) -> Batch:
    """A host that cannot be reached any more has ended."""
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(reference)
    except RayError as error:
        line = str(error).strip().splitlines()[0]
        lost = Batch(ended_at=time.time(), over=True)
        lost.tail = [f"the agent of this host is gone: {line}"]
        return lost


def _exit(batch: Batch) -> Exit:
    lost = "" if batch.status is not None else "\n".join(batch.tail) or "its processes were killed"
    return Exit(batch.status, batch.ended_at or 0.0, batch.stopped, batch.tail, lost)


def _is_stopping(exits: Mapping[int, Exit]) -> bool:
    """Whether a host has saved and ended although nobody here asked."""
    return any(ended.code == ON_REQUEST for ended in exits.values())


def _note_taken_port(event: Event, taken: list[Event]) -> None:
    if event["event"] == "warning" and event.get("kind") == "port_taken":
        taken.append(event)
