"""Reads events.jsonl in bounded time: a summary of its first part, kept by the run, and the rest.

The summary contains only what is in events.jsonl. Without it, only the newest events of a large
file are read.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from launcher.core.events import LastHeardEvent, parse_event
from launcher.core.files import replace_file
from launcher.runs.goodput import Account, Goodput
from launcher.runs.history import History
from launcher.runs.save_account import SaveAccount
from launcher.runs.timeline import Timeline
from launcher.runs.usage import UsageAccount
from trainer.contract.protocol.events import Event

NAME = "events_summary.json"
SUMMARY_EVERY_BYTES = 4 << 20
"""Bytes added to events.jsonl after which a run updates the summary."""
MOST_READ_BYTES = 16 << 20
"""Maximum number of bytes to read, about half a second."""


@dataclass
class Summary:
    """A summary of the first `offset` bytes of events.jsonl."""

    offset: int = 0
    begin: int = 0
    """First byte that was read; events before it are left out."""
    timeline: Timeline = field(default_factory=Timeline)
    account: Account = field(default_factory=Account)
    history: History = field(default_factory=History)
    usage: UsageAccount = field(default_factory=UsageAccount)
    saves: SaveAccount = field(default_factory=SaveAccount)

    def goodput(self, now: float | None, heard: float | None = None) -> Goodput:
        """Returns the goodput. Call it once, at the end.

        `now`: as in `goodput.goodput`. `heard`: when a host of a lost run last sent an event.
        """
        self.account.take(self.timeline.add(LastHeardEvent(time=heard)))
        self.account.take(self.timeline.rest())
        self.account.close(now)
        return self.account.goodput()

    def read_on(self, events: Path, on_event: Callable[[Event], None] = lambda _: None) -> None:
        """Adds the complete lines after `offset`, and passes each event to `on_event`."""
        with events.open("rb") as lines:
            lines.seek(self.offset)
            for line in lines:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                if event := parse_event(line):
                    self.account.take(self.timeline.add(event))
                    self.history.add(event)
                    self.usage.add(event)
                    self.saves.add(event)
                    on_event(event)

    def skip_to(self, events: Path, offset: int) -> None:
        """Skips to the first complete line after `offset`."""
        with events.open("rb") as lines:
            lines.seek(offset)
            self.offset = self.begin = offset + len(lines.readline())


_ADAPTER = TypeAdapter(Summary)


def read(folder: Path) -> Summary:
    """Returns the summary of a run's events.jsonl, or of its newest part if none was stored."""
    events = folder / "events.jsonl"
    try:
        size = events.stat().st_size
    except OSError:
        return Summary()
    found = _stored(folder, size)
    if size - found.offset > MOST_READ_BYTES:
        found = Summary()
        found.skip_to(events, size - MOST_READ_BYTES)
    found.read_on(events)
    return found


def write(folder: Path) -> None:
    """Stores a summary of the current events.jsonl."""
    replace_file(folder / NAME, _ADAPTER.dump_json(read(folder)).decode())


def _stored(folder: Path, size: int) -> Summary:
    """Returns the stored summary; an empty one when there is none for this file."""
    try:
        found = _ADAPTER.validate_json((folder / NAME).read_bytes())
    except (OSError, ValidationError):
        return Summary()
    return found if found.offset <= size else Summary()
