"""Carries out requests of commands on the agents of a gang, beside the watch over its programs."""

import time
import uuid
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from launcher.core.formatting import format_bytes
from launcher.gang.agent_calls import STACKS_DELAY_S, STACKS_TIMEOUT_S, Agents
from launcher.host.profile import TracedFiles, TraceFile
from launcher.host.side_command import CommandUpdate
from launcher.requests.inbox import Received
from launcher.requests.messages import (
    CommandEnded,
    CommandOutput,
    Done,
    ExecRequest,
    Failed,
    ProcessStacks,
    ProfileRequest,
    TracePart,
    TraceWritten,
    Working,
)

MOST_AT_ONCE = 2
"""Requests that are carried out at the same time: each may take a thread of every agent."""
WORKING_EVERY_S = 2.0
OUTPUT_WAIT_S = 0.5
"""Seconds for which an agent waits for output of a command before it answers."""
MOST_OUTPUT_BYTES = 256 << 20
"""Most output of one command: it passes through a file in the run's folder."""


class Task(ABC):
    """A request that is being carried out."""

    @abstractmethod
    def poll(self) -> bool:
        """Sends what is new, without waiting. Returns whether the task is over."""

    def cancel(self) -> None:
        """Ends what the request has started, because its command has ended."""
        return


class LiveRequests:
    """The requests to a gang whose programs run. `poll` is called a few times a second."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._waiting: list[Received] = []
        self._active: dict[Received, Task] = {}
        self._reported_at = time.monotonic()

    def poll(self, new: Sequence[Received]) -> None:
        """Begins new requests and continues the others."""
        self._waiting = [one for one in [*self._waiting, *new] if not one.is_withdrawn]
        while self._waiting and len(self._active) < MOST_AT_ONCE:
            received = self._waiting.pop(0)
            self._active[received] = self._begin(received)
        for received, task in list(self._active.items()):
            if received.is_withdrawn:
                task.cancel()
            if received.is_withdrawn or task.poll():
                del self._active[received]
        self._report()

    def close(self) -> None:
        """Ends all requests, because the programs have ended."""
        for received, task in self._active.items():
            task.cancel()
            received.answer(Failed("the attempt has ended meanwhile"))
        for received in self._waiting:
            received.answer(Failed("the attempt has ended meanwhile"))
        self._active, self._waiting = {}, []

    def _begin(self, received: Received) -> Task:
        match received.request:
            case ExecRequest() as request:
                return ExecTask(received, request, self._agents)
            case ProfileRequest() as request:
                return ProfileTask(received, request, self._agents)
            case _:
                return StacksTask(received, self._agents)

    def _report(self) -> None:
        """Shows the commands now and then that their requests are not forgotten."""
        if time.monotonic() - self._reported_at >= WORKING_EVERY_S:
            self._reported_at = time.monotonic()
            for received in [*self._active, *self._waiting]:
                received.answer(Working())


class StacksTask(Task):
    """Collects the stacks of all programs."""

    def __init__(self, received: Received, agents: Agents) -> None:
        self._received = received
        self._calls = {agent.stacks.remote(STACKS_TIMEOUT_S): p for p, agent in enumerate(agents)}
        self._ends_at = time.monotonic() + STACKS_TIMEOUT_S + STACKS_DELAY_S

    def poll(self) -> bool:
        for call in _ready(list(self._calls)):
            text = _answer(call) or ""
            self._received.answer(ProcessStacks(self._calls.pop(call), text))
        is_over = not self._calls or time.monotonic() >= self._ends_at
        if is_over:
            for process in self._calls.values():
                self._received.answer(ProcessStacks(process, ""))
            self._received.answer(Done())
        return is_over


class ExecTask(Task):
    """Runs a command on the host of one process."""

    def __init__(self, received: Received, request: ExecRequest, agents: Agents) -> None:
        self._received, self._name = received, uuid.uuid4().hex
        self._host, self._sent_bytes = agents.name_of(request.process), 0
        is_known = 0 <= request.process < len(agents)
        self._agent = agents[request.process] if is_known else None
        self._call = self._agent and self._agent.execute.remote(self._name, request.command)

    def poll(self) -> bool:
        if self._agent is None:
            self._received.answer(Failed(f"there is no {self._host}"))
            return True
        if not _ready([self._call]):
            return False
        answer = _answer(self._call)
        if answer != "" and not isinstance(answer, CommandUpdate):
            self._received.answer(Failed(f"{self._host}: {answer or 'its agent has failed'}"))
            return True
        if answer and self._send(answer):
            return True
        self._call = self._agent.command_output.remote(self._name, OUTPUT_WAIT_S)
        return False

    def cancel(self) -> None:
        if self._agent is not None:
            self._agent.end_command.remote(self._name)

    def _send(self, update: CommandUpdate) -> bool:
        """Sends what the command has printed. Returns whether it is over."""
        if update.stdout or update.stderr:
            stdout, stderr = (b64encode(data).decode() for data in (update.stdout, update.stderr))
            self._received.answer(CommandOutput(stdout, stderr))
            self._sent_bytes += len(update.stdout) + len(update.stderr)
        if update.exit_code is not None:
            self._received.answer(CommandEnded(update.exit_code))
            self._received.answer(Done())
            return True
        if self._sent_bytes > MOST_OUTPUT_BYTES:
            self.cancel()
            size = format_bytes(MOST_OUTPUT_BYTES)
            self._received.answer(Failed(f"the command has printed more than {size} and is ended"))
            return True
        return False


class ProfileTask(Task):
    """Lets one program trace its next steps, and fetches the trace from a host apart."""

    def __init__(self, received: Received, request: ProfileRequest, agents: Agents) -> None:
        self._received, self._host = received, agents.name_of(request.process)
        is_known = 0 <= request.process < len(agents)
        self._agent = agents[request.process] if is_known else None
        self._call = self._agent and self._agent.trace.remote(request.steps)
        self._files: list[TraceFile] = []
        """Files that are still to be sent, the current one first."""
        self._sent_bytes = 0
        """Bytes of the current file that have been sent."""

    def poll(self) -> bool:
        if self._agent is None:
            return self._fail("there is no such host")
        if not _ready([self._call]):
            return False
        match _answer(self._call):
            case "" | TracedFiles(files=None):
                self._call = self._agent.traced.remote(OUTPUT_WAIT_S)
                return False
            case TracedFiles(files=files, is_apart=is_apart):
                return self._send_files(files, is_apart=is_apart)
            case bytes() as part:
                return self._send_part(part)
            case str() as problem:
                return self._fail(problem)
            case _:
                return self._fail("its agent has failed")

    def cancel(self) -> None:
        if self._agent is not None:
            self._agent.cancel_trace.remote()

    def _send_files(self, files: list[TraceFile] | None, *, is_apart: bool) -> bool:
        if not files:
            return self._fail("its program has written no trace; see its log")
        if is_apart:
            self._files = files
            return self._next_file()
        for file in files:
            self._received.answer(TraceWritten(file.path, is_apart=False))
        self._received.answer(Done())
        return True

    def _next_file(self) -> bool:
        """Begins to fetch the next file. Returns whether there is none."""
        if not self._files:
            self._received.answer(Done())
            return True
        self._sent_bytes = 0
        self._received.answer(TraceWritten(self._files[0].path, is_apart=True))
        return self._next_part()

    def _next_part(self) -> bool:
        assert self._agent is not None
        self._call = self._agent.trace_part.remote(self._files[0].path, self._sent_bytes)
        return False

    def _send_part(self, part: bytes) -> bool:
        if not part:
            self._files.pop(0)
            return self._next_file()
        self._received.answer(TracePart(b64encode(part).decode()))
        self._sent_bytes += len(part)
        return self._next_part()

    def _fail(self, reason: str) -> bool:
        self._received.answer(Failed(f"{self._host}: {reason}"))
        return True


def _ready(calls: Sequence[Any]) -> list[Any]:
    """Returns the calls that have been answered, without waiting."""
    import ray

    return ray.wait(list(calls), num_returns=len(calls), timeout=0)[0] if calls else []


def _answer(call: Any) -> Any:
    """Returns the answer of an agent; None when the agent has failed."""
    import ray
    from ray.exceptions import RayError

    with suppress(RayError):
        return ray.get(call)
    return None
