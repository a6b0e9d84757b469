"""What a command asks of a live run, and the answers; see client.py and inbox.py."""

from dataclasses import dataclass
from typing import ClassVar

from launcher.core.messages import Message


@dataclass(frozen=True)
class StacksRequest(Message):
    """Asks for the stacks of the programs of all processes."""

    kind: ClassVar = "stacks"


@dataclass(frozen=True)
class ProcessStacks(Message):
    """The stacks of the program of one process."""

    kind: ClassVar = "process_stacks"
    process: int
    text: str
    """What faulthandler or py-spy has printed; "" without a program or an answer."""


@dataclass(frozen=True)
class ExecRequest(Message):
    """Asks to run a command in the environment of a process's program, on its host."""

    kind: ClassVar = "exec"
    process: int
    command: tuple[str, ...]


@dataclass(frozen=True)
class CommandOutput(Message):
    """What the command has printed since the last such message."""

    kind: ClassVar = "command_output"
    stdout: str
    """Bytes of its standard output, in base64."""
    stderr: str


@dataclass(frozen=True)
class CommandEnded(Message):
    """The command has ended."""

    kind: ClassVar = "command_ended"
    exit_code: int
    """Its exit code; 128 + N after signal N."""


@dataclass(frozen=True)
class ProfileRequest(Message):
    """Asks for a trace of the next steps of a process."""

    kind: ClassVar = "profile"
    process: int
    steps: int


@dataclass(frozen=True)
class HostsRequest(Message):
    """Asks an elastic run to go on with at most so many hosts, after it has saved.

    The answer comes at once. The run shrinks as soon as it can; it grows after its next checkpoint.
    """

    kind: ClassVar = "hosts"
    hosts: int


@dataclass(frozen=True)
class TraceWritten(Message):
    """A file of the trace, complete in the run's folder of its host."""

    kind: ClassVar = "trace_written"
    path: str
    """Path below the run's folder."""
    is_apart: bool
    """Whether the host does not share the run's folder: its parts follow."""


@dataclass(frozen=True)
class TracePart(Message):
    """The next bytes of the last file, in base64."""

    kind: ClassVar = "trace_part"
    data: str


@dataclass(frozen=True)
class Working(Message):
    """The request is being worked on, and nothing is new."""

    kind: ClassVar = "working"


@dataclass(frozen=True)
class Done(Message):
    """Nothing more follows."""

    kind: ClassVar = "done"


@dataclass(frozen=True)
class Failed(Message):
    """The request cannot be carried out; nothing more follows."""

    kind: ClassVar = "failed"
    reason: str


Request = StacksRequest | ExecRequest | ProfileRequest | HostsRequest
REQUEST_TYPES = (StacksRequest, ExecRequest, ProfileRequest, HostsRequest)
Answer = (
    ProcessStacks
    | CommandOutput
    | CommandEnded
    | TraceWritten
    | TracePart
    | Working
    | Done
    | Failed
)
ANSWER_TYPES = (
    ProcessStacks, CommandOutput, CommandEnded, TraceWritten, TracePart, Working, Done, Failed
)  # fmt: skip
