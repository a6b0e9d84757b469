"""One host through the user's own OpenSSH: commands, streams, and why they fail.

Nothing is ever asked on the way (BatchMode): agents, keys, known hosts and jump hosts are as the
user has configured them, and what they lack is said with its remedy.
"""

import json
import os
import select
import subprocess
import tarfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from launcher.cluster.schema import Ssh
from launcher.core.files import parse_object
from launcher.runs.fetched_files import UnpackError, unpack

CONNECT_TIMEOUT_S = 15
SILENCE_S, SILENCES = 5, 6
"""A connection over which nothing comes for their product, in seconds, is gone."""
SSH_FAILED = 255
"""The exit status of `ssh` itself; any other is that of the command."""
ENDING_TIMEOUT_S = 20.0
TAIL_LINES = 8

REMEDIES = (
    ("Host key verification failed",
     "its key is not the known one, or not known at all: log in once by hand with `{ssh}`, and "
     "compare the key that it shows"),
    ("REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its key has changed: if that is right, forget the old one with `ssh-keygen -R {host}`"),
    ("Permission denied",
     "it takes no key of yours for this user: say provider.user or provider.identity, or add the "
     "key to your agent (ssh-add), until `{ssh}` logs in without a question"),
    ("Could not resolve hostname", "there is no host of this name: look at provider.hosts"),
    ("Connection refused", "no SSH server listens there: is it the right host and port?"),
    ("timed out", "is it up, and reachable from here (provider.jump)?"),
    ("No route to host", "is it up, and reachable from here (provider.jump)?"),
)  # fmt: skip


class HostError(Exception):
    """One host cannot be used; says why and what to do."""


@dataclass(frozen=True)
class Host:
    """A machine, and how it is reached."""

    name: str
    settings: Ssh

    def words(self, command: str = "", *, terminal: bool = False) -> list[str]:
        """`ssh` with all that the cluster file says, and a command for the host's shell."""
        kind = ["-t", "-o", "LogLevel=ERROR"] if terminal else ["-T"]
        own = ["ssh", *kind, *self._options(), "--", self.name]
        return [*own, command] if command else own

    def run(self, command: str, timeout_s: float, data: bytes = b"") -> str:
        """What a command printed; `data` is its standard input.

        Raises HostError where it fails or takes longer.
        """
        with Connection(self, command) as connection:
            return connection.finish(timeout_s, data)

    def fetch(self, command: str, folder: Path, timeout_s: float) -> None:
        """Writes the known files of the compressed tar file that a command prints into a folder.

        Raises HostError where it fails or takes longer.
        """
        with Connection(self, command) as connection:
            connection.unpack(folder, timeout_s)

    def explained(self, status: int | None, error: str) -> HostError:
        """What ended a command on this host, in words, with the remedy."""
        told = "\n".join(f"    {line}" for line in error.strip().splitlines()[-TAIL_LINES:])
        if status != SSH_FAILED:
            return HostError(f"a command failed there with exit code {status}:\n{told}")
        typed = " ".join(["ssh", *self._who(), self.name])
        for words, remedy in REMEDIES:
            if words in error:
                return HostError(f"{remedy.format(ssh=typed, host=self.name)}\n{told}")
        return HostError(f"no connection; what does `{typed}` say?\n{told}")

    def _options(self) -> list[str]:
        return [
            "-o", "BatchMode=yes",
            "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}",
            "-o", f"ServerAliveInterval={SILENCE_S}",
            "-o", f"ServerAliveCountMax={SILENCES}",
            "-o", "ForwardAgent=no",
            "-o", "ForwardX11=no",
            *self._who(),
        ]  # fmt: skip

    def _who(self) -> list[str]:
        """What the cluster file says of it."""
        settings = self.settings
        given = (
            ("-F", _path(settings.config)),
            ("-l", settings.user),
            ("-p", str(settings.port or "")),
            ("-i", _path(settings.identity)),
            ("-J", settings.jump),
        )
        return [word for option, value in given if value for word in (option, value)]


class Connection:
    """A command that runs on a host, until this object closes; its standard streams are pipes.

    The end of the standard input tells the host that this side is gone, whatever ended it.
    """

    _running: ClassVar[set["Connection"]] = set()
    _are_over: ClassVar[bool] = False

    def __init__(self, host: Host, command: str) -> None:
        self.host = host
        self._rest = b""
        self._told: deque[dict[str, Any]] = deque()
        try:
            self._process = subprocess.Popen(
                host.words(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for this program to see to
            )
        except FileNotFoundError:
            raise HostError("ssh: not found on this machine: install OpenSSH's client") from None
        self._running.add(self)
        if self._are_over:
            self._process.kill()

    def finish(self, timeout_s: float, data: bytes = b"") -> str:
        """Give it all its input and wait for its end; see `Host.run`."""
        try:
            output, error = self._process.communicate(data, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise HostError(f"no end of a command after {timeout_s:.0f} s") from None
        if self._process.returncode:
            raise self.host.explained(self._process.returncode, error.decode(errors="replace"))
        return output.decode(errors="replace")

    def unpack(self, folder: Path, timeout_s: float) -> None:
        """See `Host.fetch`."""
        limit = threading.Timer(timeout_s, self._process.kill)
        limit.start()
        try:
            with tarfile.open(fileobj=self._process.stdout, mode="r|gz") as archive:
                unpack(archive, folder)
        except (UnpackError, tarfile.TarError, EOFError, OSError) as error:
            self._process.kill()
            raise HostError(f"its files could not be fetched: {error}") from None
        finally:
            limit.cancel()

    def tell(self, **message: object) -> None:
        """One JSON object to the command. Raises HostError where it has ended."""
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self, *keys: str, timeout_s: float) -> dict[str, Any]:
        """The next JSON object with such a key that the command prints; "failed" is an error.

        Raises HostError where it ends before, or none comes in time.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            while self._told:
                message = self._told.popleft()
                if "failed" in message and "failed" not in keys:
                    raise HostError(str(message["failed"]))
                if not message.keys().isdisjoint(keys):
                    return message
            if (left_s := deadline - time.monotonic()) <= 0:
                raise HostError(f"no answer ({' or '.join(keys)}) after {timeout_s:.0f} s")
            self._listen(left_s)

    def _listen(self, timeout_s: float) -> None:
        """For what comes next; the shell of a host may say things of its own before."""
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            return
        chunk = os.read(self._process.stdout.fileno(), 1 << 16)
        if not chunk:
            raise self._ended()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._told.extend(message for line in lines if (message := parse_object(line)) is not None)

    def _ended(self) -> HostError:
        assert self._process.stderr
        error = self._process.stderr.read().decode(errors="replace")
        return self.host.explained(self._process.wait(), error)

    def hang_up(self) -> None:
        """Let the host see the end of its input."""
        assert self._process.stdin
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # it had ended already

    def close(self) -> None:
        """Hang up, give the command a while to end, then end `ssh`, whatever it does."""
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
        """Those of other threads, and those that they are about to make: nobody waits for them."""
        cls._are_over = True
        for connection in list(cls._running):
            connection._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hosts_of(settings: Ssh) -> Sequence[Host]:
    """In rank order; the first is the head."""
    return [Host(name, settings) for name in settings.hosts]


def _path(given: str | None) -> str | None:
    return given and str(Path(given).expanduser())
