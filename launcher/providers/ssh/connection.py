"""One host, reached with the user's own OpenSSH: commands, streams, and reasons for failures.

Connections never prompt (BatchMode). Agents, keys, known hosts and jump hosts are as the user has
configured them; errors name what is missing and the remedy.
"""

import os
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from launcher.cluster.ssh import Ssh
from launcher.core.errors import HostError
from launcher.core.messages import AnyMessage, Message, MessageReader, encode
from launcher.providers.ray.host_protocol import (
    Failed,
    HeadPort,
    LaunchEnded,
    NodeGone,
    NodeUp,
    RunStarted,
)
from launcher.runs.fetched_files import UnpackError, unpack

CONNECT_TIMEOUT_S = 15
KEEP_ALIVE_S, MAX_UNANSWERED = 5, 6
"""Keep-alive interval in seconds, and the unanswered messages that end a connection."""
SSH_FAILED = 255
"""Exit status of a failure of `ssh` itself, see ssh(1); any other status is the command's."""
ENDING_TIMEOUT_S = 20.0
TAIL_LINES = 8
ANSWER_TYPES = (HeadPort, NodeUp, RunStarted, LaunchEnded, Failed, NodeGone)
"""Messages that a host sends."""

UNANSWERED = "no answer. Check that it is up, and reachable from here (provider.proxy_jump)"
REMEDIES = (
    ("Host key verification failed",
     "its host key is unknown or has changed. Log in once with `{ssh}`, and compare the key that "
     "it shows"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its host key has changed. If that is expected, run `ssh-keygen -R {host}`"),
    ("Permission denied",
     "it accepts none of your keys for this user. Set provider.user or provider.ssh_key, or add "
     "the key to your agent (ssh-add), until `{ssh}` logs in without a prompt"),
    ("Could not resolve hostname", "no host has this name. Check provider.hosts"),
    ("Connection refused", "no SSH server listens on it. Check provider.hosts and provider.port"),
    ("timed out", UNANSWERED),
    ("No route to host", UNANSWERED),
)  # fmt: skip


class SshError(HostError):
    """Raised when one host cannot be used; gives the reason and the remedy."""


@dataclass(frozen=True)
class Host:
    """A machine, and the settings to reach it."""

    name: str
    settings: Ssh

    def ssh_command(self, command: str = "", *, terminal: bool = False) -> list[str]:
        """Returns the `ssh` command line, with the cluster file's options, for a shell command."""
        kind = ["-t", "-o", "LogLevel=ERROR"] if terminal else ["-T"]
        own = ["ssh", *kind, *self._options(), "--", self.name]
        return [*own, command] if command else own

    def run(self, command: str, timeout_s: float, data: bytes = b"") -> str:
        """Returns the output of a command; `data` is its standard input.

        Raises SshError when the command fails or exceeds `timeout_s`.
        """
        with Connection(self, command) as connection:
            return connection.finish(timeout_s, data)

    def fetch(self, command: str, folder: Path, timeout_s: float) -> None:
        """Writes the known files of the compressed tar file that a command prints into a folder.

        Raises SshError when the command fails or exceeds `timeout_s`.
        """
        with Connection(self, command) as connection:
            connection.unpack(folder, timeout_s)

    def explained(self, status: int | None, error: str) -> SshError:
        """Returns the error for a command that failed on this host, with the remedy."""
        last_lines = "\n".join(f"    {line}" for line in error.strip().splitlines()[-TAIL_LINES:])
        if status != SSH_FAILED:
            return SshError(f"a command failed on it with exit code {status}:\n{last_lines}")
        typed = " ".join(["ssh", *self._who(), self.name])
        for text, remedy in REMEDIES:
            if text in error:
                return SshError(f"{remedy.format(ssh=typed, host=self.name)}\n{last_lines}")
        return SshError(f"no connection. See what `{typed}` prints\n{last_lines}")

    def _options(self) -> list[str]:
        return [
            "-o", "BatchMode=yes",
            "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}",
            "-o", f"ServerAliveInterval={KEEP_ALIVE_S}",
            "-o", f"ServerAliveCountMax={MAX_UNANSWERED}",
            "-o", "ForwardAgent=no",
            "-o", "ForwardX11=no",
            *self._who(),
        ]  # fmt: skip

    def _who(self) -> list[str]:
        """Returns the options that the cluster file sets."""
        settings = self.settings
        given = (
            ("-F", _path(settings.config)),
            ("-l", settings.user),
            ("-p", str(settings.port or "")),
            ("-i", _path(settings.ssh_key)),
            ("-J", settings.proxy_jump),
        )
        return [argument for option, value in given if value for argument in (option, value)]


class Connection:
    """A command that runs on a host until this object closes; its standard streams are pipes.

    The end of standard input signals to the host that this process is gone, whatever ended it.
    """

    _running: ClassVar[set["Connection"]] = set()
    _are_over: ClassVar[bool] = False

    def __init__(self, host: Host, command: str) -> None:
        self.host = host
        self._rest = b""
        self._received: deque[Message] = deque()
        self._reader = MessageReader(ANSWER_TYPES, host.name, SshError)
        try:
            self._process = subprocess.Popen(
                host.ssh_command(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # this program handles Ctrl-C
            )
        except FileNotFoundError:
            raise SshError("ssh: not found on this machine. Install OpenSSH's client") from None
        self._running.add(self)
        if self._are_over:
            self._process.kill()

    def finish(self, timeout_s: float, data: bytes = b"") -> str:
        """Sends all input and waits for the end of the command; see `Host.run`."""
        try:
            output, error = self._process.communicate(data, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise SshError(f"a command did not end within {timeout_s:.0f} s") from None
        if self._process.returncode:
            raise self.host.explained(self._process.returncode, error.decode(errors="replace"))
        return output.decode(errors="replace")

    def unpack(self, folder: Path, timeout_s: float) -> None:
        """Unpacks the output of the command; see `Host.fetch`."""
        limit = threading.Timer(timeout_s, self._process.kill)
        limit.start()
        try:
            assert self._process.stdout
            unpack(self._process.stdout, folder)
        except UnpackError as error:
            self._process.kill()
            raise SshError(f"its files cannot be fetched: {error}") from None
        finally:
            limit.cancel()

    def send(self, message: Message) -> None:
        """Sends a message to the command. Raises SshError when the command has ended."""
        assert self._process.stdin
        try:
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self, *types: type[AnyMessage], timeout_s: float) -> AnyMessage:
        """Returns the next message of one of these types that the command sends.

        Raises SshError when the command ends first, none arrives in time, a message has a missing
        or wrong field, or the command sends Failed and `types` does not include it.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            while self._received:
                message = self._received.popleft()
                if isinstance(message, types):
                    return message
                if isinstance(message, Failed):
                    raise SshError(message.reason)
            if (left_s := deadline - time.monotonic()) <= 0:
                kinds = " or ".join(message_type.kind for message_type in types)
                raise SshError(f"no answer ({kinds}) within {timeout_s:.0f} s")
            self._listen(left_s)

    def _listen(self, timeout_s: float) -> None:
        """Reads new messages. Ignores other lines, which the host's shell may print first."""
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return
        chunk = os.read(self._process.stdout.fileno(), 1 << 16)
        if not chunk:
            raise self._ended()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._received.extend(filter(None, map(self._reader.parse, lines)))

    def _ended(self) -> SshError:
        assert self._process.stderr
        error = self._process.stderr.read().decode(errors="replace")
        return self.host.explained(self._process.wait(), error)

    def hang_up(self) -> None:
        """Closes the standard input of the command, which signals the end to the host."""
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # the command had already ended

    def close(self) -> None:
        """Hangs up, waits ENDING_TIMEOUT_S for the command to end, then kills `ssh`."""
        self.hang_up()
        process = self._process
        self._running.discard(self)
        try:
            process.wait(ENDING_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdout, process.stderr):
            assert stream
            stream.close()

    @classmethod
    def end_all(cls) -> None:
        """Kills the connections of other threads, open and future: no caller waits for them."""
        cls._are_over = True
        for connection in list(cls._running):
            connection._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hosts_of(settings: Ssh) -> Sequence[Host]:
    """Returns the hosts in rank order; the first is the head."""
    return [Host(name, settings) for name in settings.hosts]


def _path(given: str | None) -> str | None:
    return given and str(Path(given).expanduser())
