"""notifications.jsonl: the notices of a run, and what became of each at each target.

A notice is in the file before it is sent. A process that dies leaves it to the next one that opens
the file, so each notice is delivered or given up.
"""

import hashlib
import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.core.files import end_torn_line, lock, parse_object
from launcher.core.messages import from_wire, to_wire
from launcher.notify.notices import Notice
from launcher.runs.records import RunRecordError
from trainer.contract.config.notify import AnyTarget

NAME = "notifications.jsonl"


def target_id(target: AnyTarget) -> str:
    """Returns a short text that is the same as long as the target is."""
    return hashlib.sha256(target.model_dump_json().encode()).hexdigest()[:8]


@dataclass
class Record:
    """The contents of the file."""

    notices: dict[str, tuple[Notice, list[str]]] = field(default_factory=dict)
    """Each notice with the ids of its targets, by its own id."""
    done: set[tuple[str, str]] = field(default_factory=set)
    """Notice and target that need no further try."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Adds a line of the file; ignores one of another version."""
        match line:
            case {"status": "queued", "notice": dict(wire), "targets": list(targets)}:
                with suppress(RunRecordError):
                    notice = from_wire(Notice, wire, NAME, RunRecordError)
                    self.notices[notice.id] = notice, targets
            case {"status": "sent" | "given_up", "id": str(notice_id), "target_id": str(target)}:
                self.done.add((notice_id, target))
            case _:
                pass

    def pending(self, targets: Collection[str]) -> Iterator[tuple[Notice, str]]:
        """Yields each notice that one of these targets has still to get, with the target."""
        for notice, wanted in self.notices.values():
            for one in wanted:
                if one in targets and (notice.id, one) not in self.done:
                    yield notice, one


class Outbox:
    """The file of one run. One process at a time sends what it contains."""

    def __init__(self, folder: Path) -> None:
        """Opens the file. Raises OSError."""
        self.path = folder / NAME
        self._file = self.path.open("a", encoding="utf-8")
        self._writing = threading.Lock()
        try:
            self.is_owner = lock(self._file)
            """Whether no other process sends what is in the file."""
        except OSError:
            self.is_owner = True  # a file system without locks has no run that is alive
        if self.is_owner:
            end_torn_line(self.path)

    def read(self) -> Record:
        """Returns the contents of the file."""
        record = Record()
        for line in self.path.read_bytes().splitlines():
            record.add(parse_object(line) or {})
        return record

    def queue(self, notice: Notice, targets: Sequence[AnyTarget]) -> None:
        """Records a notice that is to be sent to some targets."""
        ids = [target_id(target) for target in targets]
        self._add({"status": "queued", "notice": to_wire(notice), "targets": ids})

    def sent(self, notice: Notice, target: AnyTarget, tries: int) -> None:
        """Records a delivery."""
        self._add({"status": "sent", **_about(notice, target), "tries": tries})

    def given_up(self, notice: Notice, target: AnyTarget, tries: int, reason: str) -> None:
        """Records that a notice is not sent to a target any more."""
        about = _about(notice, target)
        self._add({"status": "given_up", **about, "tries": tries, "reason": reason})

    def close(self) -> None:
        """Closes the file; later records are dropped."""
        with self._writing:
            self._file.close()

    def _add(self, line: Mapping[str, Any]) -> None:
        # A full disk ends the run through its events; and the file may be closed.
        with self._writing, suppress(OSError, ValueError):
            self._file.write(json.dumps({"time": time.time(), **line}) + "\n")
            self._file.flush()


def _about(notice: Notice, target: AnyTarget) -> dict[str, Any]:
    return {
        "id": notice.id,
        "event": notice.event,
        "target": target.label,
        "target_id": target_id(target),
    }
