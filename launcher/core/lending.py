"""Lends what waits on a warm cluster to one launch at a time, over a socket.

A launch that connects receives one message, which says what it can use. It stays connected until
its run has ended, however that ends. A launch that comes meanwhile gets nothing.
"""

import select
import socket
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Generic

from launcher.core.errors import InternalError
from launcher.core.messages import AnyMessage, Message, MessageReader, encode

TIMEOUT_S = 5.0
"""Seconds that each side waits for the other one."""
TAKEN = b"taken\n"
"""What a launch sends when it has taken over all that it wants."""


class Lender(ABC):
    """Owns what is lent, and the one launch that holds it."""

    KEEP_ALIVE_S: float | None = None
    """Seconds between calls of `keep_alive`; None when nothing would end."""

    def __init__(self, path: Path) -> None:
        """Listens at the socket `path`."""
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._holder: socket.socket | None = None

    @abstractmethod
    def start(self) -> None:
        """Starts what the next launch can use."""

    @abstractmethod
    def offer(self) -> Message:
        """Returns what a launch can use now."""

    @abstractmethod
    def end(self) -> None:
        """Ends what the launch has not taken over.

        Called when it has taken all that it wants, and at its end.
        """

    def keep_alive(self) -> None:  # noqa: B027 - optional
        """Keeps what no launch holds from ending itself; called every `KEEP_ALIVE_S`."""

    def serve(self) -> None:
        """Serves one launch after the other, without end."""
        self.start()
        self._server.listen()
        while True:
            sources = [self._server, *filter(None, [self._holder])]
            for ready in select.select(sources, [], [], self.KEEP_ALIVE_S)[0]:
                if ready is self._server:
                    self._admit(self._server.accept()[0])
                elif _has_sent(ready):
                    self.end()
                else:
                    self._end_loan(ready)
            if self._holder is None:
                self.keep_alive()

    def _admit(self, launch: socket.socket) -> None:
        if self._holder is not None:
            launch.close()
            return
        self._holder = launch
        launch.settimeout(TIMEOUT_S)
        try:
            launch.sendall(encode(self.offer()))
        except OSError:  # it has ended
            self._end_loan(launch)

    def _end_loan(self, launch: socket.socket) -> None:
        launch.close()
        self._holder = None
        self.end()
        self.start()


class Loan(Generic[AnyMessage]):
    """What a launch borrows, until `close`."""

    def __init__(self, path: Path | None, kind: type[AnyMessage]) -> None:
        """Asks the lender at the socket `path`, which may hold nothing for this launch."""
        self.offer: AnyMessage | None = None
        """The answer; None when there is nothing to borrow."""
        self._lender = socket.socket(socket.AF_UNIX)
        self._lender.settimeout(TIMEOUT_S)
        if path is None:
            return
        with suppress(OSError, InternalError):  # it has ended, or is of another version
            self._lender.connect(str(path))
            line = self._lender.makefile("rb").readline()
            self.offer = MessageReader([kind], "a warm cluster", InternalError).parse(line)

    def taken(self) -> None:
        """Lets the lender end what this process has not taken over."""
        with suppress(OSError):
            self._lender.sendall(TAKEN)

    def close(self) -> None:
        """Gives it back."""
        self._lender.close()


def _has_sent(launch: socket.socket) -> bool:
    """Returns whether a launch whose socket is readable has sent something, and has not ended."""
    try:
        return bool(launch.recv(len(TAKEN)))
    except OSError:  # it was killed before it read its answer
        return False
