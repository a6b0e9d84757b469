"""Shares the compiled programs of hosts that have disks of their own, through their agents.

What a process has used is fetched while it trains. A host gets what processes of its number have
used before its program starts, so that it compiles nothing of that again.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.gang.agent_calls import Agents
from launcher.gang.host_program import HostProgram
from launcher.gang.program_archive import ProgramArchive
from launcher.host.program_files import ProgramFile, ProgramFiles
from launcher.providers.ray.client import answered
from trainer.contract.protocol.environment import JAX_PLATFORMS

FIRST_S, LONGEST_S = 2.0, 300.0
"""Seconds from the first step to the first look at a host's programs, and the longest time between
two looks: each is twice as long as the one before."""
AT_ONCE = 8
"""Hosts with which files are exchanged at the same time."""
TURN_S = 0.1
"""Seconds that the exchange may take of each turn of the watch over the programs."""
ANSWER_S = 30.0
"""Seconds for an agent to answer while its program runs."""
SEND_S = 20.0
"""Seconds for which a start waits until the hosts have their programs."""

Exchange = Generator[Any, Any, None]
"""Yields calls of an agent, and receives their answers."""


@dataclass
class _Task:
    """An exchange with the agent of a process."""

    process: int
    exchange: Exchange
    is_delivery: bool
    called_at: float = 0.0
    """When it made its last call, in monotonic seconds."""


class ProgramSync:
    """The exchange of programs with the hosts of a gang. Never waits except in `finish`."""

    def __init__(
        self, agents: Agents, archive: ProgramArchive | None, warn: Callable[[str], None]
    ) -> None:
        """Creates an exchange; without an archive, there is none.

        `warn` receives the first reason why a host compiles what another one has compiled.
        """
        self._agents, self._archive, self._warn = agents, archive, warn
        self._ids: dict[int, str] = {}
        """The cache folder of each process, by its id."""
        self._look_at: dict[int, tuple[float, float]] = {}
        """When to look at the programs of a process, and how many seconds after the last time."""
        self._waiting: deque[_Task] = deque()
        self._calls: dict[Any, _Task] = {}
        self._served: set[int] = set()
        """Processes that have been asked what they lack, for the next start."""
        self._rejected: set[ProgramFile] = set()
        """Files that could not be kept, and are not fetched again."""
        self._has_warned = False

    def send(self, programs: Mapping[int, HostProgram]) -> None:
        """Begins to send programs to the hosts that lack some, before a start.

        What an earlier start has begun to fetch ends.
        """
        self._look_at.clear()
        self._calls = {call: task for call, task in self._calls.items() if task.is_delivery}
        self._waiting = deque(task for task in self._waiting if task.is_delivery)
        for process, program in programs.items():
            if self._archive is None or process in self._served:
                continue
            self._served.add(process)
            on_cpu = program.environment.get(JAX_PLATFORMS) == "cpu"
            if files := self._archive.needed(process, on_cpu=on_cpu):
                exchange = self._deliver(self._archive, process, program, files)
                self._waiting.append(_Task(process, exchange, is_delivery=True))
        self._continue(0.0)

    def finish(self) -> None:
        """Waits until all is sent, or for SEND_S: what has not arrived then is compiled."""
        deadline = time.monotonic() + SEND_S
        while (self._calls or self._waiting) and (left_s := deadline - time.monotonic()) > 0:
            self._continue(left_s)
        for task in (*self._calls.values(), *self._waiting):
            self._report(task.process, f"they have not arrived within {SEND_S:.0f} s")
        self._calls.clear()
        self._waiting.clear()
        self._served.clear()

    def has_compiled(self, process: int) -> None:
        """Lets the programs of a process be fetched, which is about to do its first step."""
        if self._archive is not None:
            self._look_after(process, FIRST_S)

    def poll(self) -> None:
        """Continues for at most TURN_S; to be called often."""
        now = time.monotonic()
        for process, (at, after_s) in list(self._look_at.items()):
            if now >= at and self._archive is not None:
                del self._look_at[process]
                exchange = self._fetch(self._archive, process, after_s)
                self._waiting.append(_Task(process, exchange, is_delivery=False))
        while (left_s := now + TURN_S - time.monotonic()) > 0:
            if not self._continue(left_s):
                break
        self._drop_unanswered()

    def _look_after(self, process: int, after_s: float) -> None:
        self._look_at[process] = time.monotonic() + after_s, after_s

    def _deliver(
        self,
        archive: ProgramArchive,
        process: int,
        program: HostProgram,
        files: Sequence[ProgramFile],
    ) -> Exchange:
        agent = self._agents[process]
        missing = yield agent.missing_programs.remote(program, [file.name for file in files])
        for file in files:
            if file.name in missing and (problem := (yield from _send(archive, agent, file))):
                self._report(process, problem)

    def _fetch(self, archive: ProgramArchive, process: int, after_s: float) -> Exchange:
        agent = self._agents[process]
        if process not in self._ids:
            self._ids[process] = yield agent.programs_folder.remote()
        if not self._is_one_folder():
            used: list[ProgramFile] = yield agent.used_programs.remote()
            for file in used:
                if file in self._rejected or archive.has(file):
                    continue
                problem = archive.refusal(file) or archive.add(
                    file, (yield from _receive(agent, file))
                )
                if problem:
                    self._rejected.add(file)
                    self._report(process, problem)
            archive.record(process, used)
        elif len(self._ids) == len(self._agents):
            return  # the programs stay where all hosts find them
        self._look_after(process, min(2 * after_s, LONGEST_S))

    def _is_one_folder(self) -> bool:
        """Returns whether all hosts whose folder is known share it: one host, with this machine."""
        ids = {*self._ids.values()}
        if len(self._agents) == 1:
            ids.add(ProgramFiles(os.environ).folder_id)
        return len(ids) == 1

    def _continue(self, wait_s: float) -> int:
        """Continues what has been answered within `wait_s`; returns the number of answers."""
        while self._waiting and len(self._calls) < AT_ONCE:
            self._step(self._waiting.popleft(), None)
        if not self._calls:
            return 0
        ready = answered(list(self._calls), wait_s)
        for call in ready:
            self._take(self._calls.pop(call), call)
        return len(ready)

    def _take(self, task: _Task, call: Any) -> None:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            answer = ray.get(call)
        except RayError as error:
            # The watch over the programs reports a host that is lost while it trains.
            if task.is_delivery or isinstance(error, RayTaskError):
                self._report(task.process, f"its agent has failed: {type(error).__name__}")
            return
        self._step(task, answer)

    def _step(self, task: _Task, answer: Any) -> None:
        """Lets a task make its next call, unless it is over."""
        try:
            self._calls[task.exchange.send(answer)] = task
            task.called_at = time.monotonic()
        except StopIteration:
            pass
        except OSError as error:
            self._report(task.process, f"{error.filename}: {error.strerror}")

    def _drop_unanswered(self) -> None:
        """Ends exchanges with agents that may answer other calls, but not these."""
        now = time.monotonic()
        for call, task in list(self._calls.items()):
            if now - task.called_at > ANSWER_S:
                del self._calls[call]
                self._report(task.process, f"no answer within {ANSWER_S:.0f} s")

    def _report(self, process: int, reason: str) -> None:
        """Warns of the first problem: the others usually have the same reason."""
        if not self._has_warned:
            self._has_warned = True
            self._warn(
                f"compiled programs of {self._agents.name_of(process)} are not shared: {reason}. "
                "A host that lacks them compiles them"
            )


def _send(archive: ProgramArchive, agent: Any, file: ProgramFile) -> Generator[Any, str, str]:
    """Sends a file in parts; returns why the host does not have it, or ""."""
    sent, problem = 0, ""
    while sent < file.size and not problem:
        part = archive.part(file, sent)
        problem = yield agent.take_program.remote(file, sent, part)
        sent += len(part) or file.size
    return problem


def _receive(agent: Any, file: ProgramFile) -> Generator[Any, bytes, bytearray]:
    """Returns the content of a file, or a part of it if the host has removed it meanwhile."""
    content = bytearray()
    while len(content) < file.size:
        part = yield agent.program_part.remote(file.name, len(content))
        if not part:
            break
        content += part
    return content
