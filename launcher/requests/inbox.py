"""The driver's side of requests. A thread reads and writes their files.

The process that drives a run must not wait for its storage; see runs/live.py.
"""

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from launcher.core.errors import HostError
from launcher.core.files import is_locked
from launcher.core.messages import Message, MessageReader, encode
from launcher.requests.files import ANSWERS, POLL_INTERVAL_S, REQUEST, folder_of
from launcher.requests.messages import REQUEST_TYPES, Answer, Failed, Request

CLOSING_S = 1.0
_READER = MessageReader(REQUEST_TYPES, "a command", HostError)


class Received:
    """A request of a command that waits for answers."""

    def __init__(self, folder: Path, request: Request | None) -> None:
        self.request = request
        self.is_withdrawn = False
        """Whether the command has ended: no answer reaches it."""
        self.folder = folder
        self._answers: list[Message] = []
        self._changing = threading.Lock()

    def answer(self, answer: Answer) -> None:
        """Sends an answer, without waiting until it is written."""
        with self._changing:
            self._answers.append(answer)

    def write(self) -> None:
        """Writes the answers that wait, and notices whether the command still does."""
        if not is_locked(self.folder / REQUEST):
            self.is_withdrawn = True
            shutil.rmtree(self.folder, ignore_errors=True)  # the command was killed
            return
        with self._changing:
            lines, self._answers = b"".join(map(encode, self._answers)), []
        if lines:
            with (self.folder / ANSWERS).open("ab") as file:
                file.write(lines)


class Inbox:
    """The requests to a run. `take` returns the new ones."""

    def __init__(
        self,
        run_dir: Callable[[], Path],
        at_once: Callable[[Request], Answer | None] = lambda request: None,
    ) -> None:
        """Creates an inbox.

        `at_once` answers a request that needs no program, in whichever state the run is; it returns
        None for others. The thread of the inbox calls it.
        """
        self._run_dir, self._at_once = run_dir, at_once
        self._known: dict[str, Received | None] = {}
        """Requests by the names of their folders; None for those that cannot be read."""
        self._new: list[Received] = []
        self._changing, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._keep_up, daemon=True, name="requests")

    def __enter__(self) -> Self:
        """Starts the thread: as late as possible, because a fork does not inherit threads."""
        with suppress(OSError):  # a full disk ends the run through its events
            folder_of(self._run_dir()).mkdir(mode=0o700, exist_ok=True)
        self._thread.start()
        return self

    def take(self) -> list[Received]:
        """Returns the requests that have arrived since the last call."""
        with self._changing:
            new, self._new = self._new, []
        return new

    def __exit__(self, *_: object) -> None:
        """Writes the last answers, within CLOSING_S."""
        self._closed.set()
        self._thread.join(CLOSING_S)

    def _keep_up(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.wait(POLL_INTERVAL_S)
            with suppress(OSError, HostError):
                self._look()
            for received in filter(None, self._known.values()):
                with suppress(OSError):
                    received.write()

    def _look(self) -> None:
        with os.scandir(folder_of(self._run_dir())) as entries:
            names = {entry.name for entry in entries if not entry.name.startswith(".")}
        for name in self._known.keys() - names:
            if gone := self._known.pop(name):
                gone.is_withdrawn = True
        for name in names - self._known.keys():
            self._known[name] = self._receive(folder_of(self._run_dir()) / name)

    def _receive(self, folder: Path) -> Received | None:
        """Returns a new request; None for one that is withdrawn or another user's."""
        path = folder / REQUEST
        if not is_locked(path) or path.stat().st_uid != os.getuid():
            return None
        request = _READER.parse(path.read_bytes())
        received = Received(folder, request)
        if request is None:
            received.answer(Failed("its driver, of another version, does not know this request"))
        elif answer := self._at_once(request):
            received.answer(answer)
        else:
            with self._changing:
                self._new.append(received)
        return received
