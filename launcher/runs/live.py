"""Files that are updated while a run is alive: hosts.json, and the summary of events.jsonl.

A thread writes them. The process that runs a run must not wait for its storage: agents that
receive no request for a minute end themselves.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.core.files import read_object, replace_file
from launcher.core.usage import Usage
from launcher.runs import summary
from launcher.runs.goodput import Goodput
from launcher.runs.phases import HostPhases
from launcher.runs.timeline import as_time
from trainer.contract.protocol.events import Event

NAME = "hosts.json"
LOOK_EVERY_S = 0.5
"""Seconds until a changed phase is in hosts.json."""
EVERY_S = 5.0
"""Maximum age of the last event's time in hosts.json, in seconds."""
CLOSING_S = 1.0
"""Timeout of the last write in seconds. Stalled storage does not delay the end of a run."""


@dataclass(frozen=True)
class LiveHosts:
    """The contents of hosts.json."""

    heard: float | None
    """When a host last sent an event, in seconds since the epoch; None when unknown."""
    phases: dict[int, str]
    """Current phase of each host of the last attempt, by process."""


def read(folder: Path) -> LiveHosts:
    """Returns the state of a run's hosts when the file was last written."""
    found = read_object(folder / NAME)
    phases = found.get("phases")
    named = phases if isinstance(phases, dict) else {}
    return LiveHosts(
        as_time(found.get("heard")),
        {int(process): str(phase) for process, phase in named.items() if process.isdecimal()},
    )


def read_goodput(folder: Path, *, is_alive: bool) -> Goodput:
    """Returns the goodput of a run, until now if it is alive."""
    found = summary.read(folder)
    return found.goodput(time.time() if is_alive else None, read(folder).heard)


def read_usage(folder: Path, *, is_alive: bool) -> Usage:
    """Returns what a run has used of its hosts, until now if it is alive."""
    account = summary.read(folder).usage
    return account.until(time.time() if is_alive else read(folder).heard)


class LiveFiles:
    """Keeps the files of one run up to date."""

    def __init__(self, folder: Callable[[], Path]) -> None:
        self._folder = folder
        self._changing, self._closed = threading.Lock(), threading.Event()
        self._phases = HostPhases()
        self._heard = 0.0
        self._written = LiveHosts(None, {})
        self._unsummarized = 0
        self._thread: threading.Thread | None = None

    def on_event(self, event: Event, received: float) -> None:
        """Adds an event of a host, and the time at which it arrived."""
        with self._changing:
            self._phases.add(event)
            self._heard = received
        self._start()

    def on_written(self, count: int) -> None:
        """Adds the number of bytes that were appended to events.jsonl."""
        with self._changing:
            self._unsummarized += count

    def close(self) -> None:
        """Writes what has changed, within CLOSING_S."""
        self._closed.set()
        if self._thread:
            self._thread.join(CLOSING_S)

    def _start(self) -> None:
        """Starts the thread, as late as possible: a fork does not inherit threads."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep_up, daemon=True, name="live-files")
            self._thread.start()

    def _keep_up(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closed.wait(LOOK_EVERY_S)
            with suppress(OSError):  # a full disk ends the run through its events
                self._write_hosts(is_last)
                self._summarize()

    def _write_hosts(self, is_last: bool) -> None:
        with self._changing:
            found = LiveHosts(self._heard, dict(self._phases.by_process))
        age_s = self._heard - (self._written.heard or 0.0)
        has_changed = found.phases != self._written.phases
        if has_changed or age_s >= EVERY_S or (is_last and age_s > 0):
            about = {"heard": found.heard, "phases": found.phases}
            replace_file(self._folder() / NAME, json.dumps(about))
            self._written = found

    def _summarize(self) -> None:
        with self._changing:
            is_due = self._unsummarized >= summary.SUMMARY_EVERY_BYTES
            self._unsummarized = 0 if is_due else self._unsummarized
        if is_due:
            summary.write(self._folder())
