"""Small programs that a gang runs in place of the trainer, and what they say."""

import sys
from collections.abc import Callable
from typing import Any

from launcher.core.events import Listener
from launcher.gang.monitor import GangMonitor
from trainer.contract.protocol.events import Event
from trainer.contract.protocol.wire import to_wire

SAY = """
import json, os, sys, time
process = int(os.environ["SLIPWAY_PROCESS_ID"])
def say(**event):
    os.write(int(os.environ["SLIPWAY_EVENTS_FD"]), json.dumps(event).encode() + b"\\n")
"""


START = """
start = os.fdopen(int(os.environ["SLIPWAY_START_FD"])).readline()
changes = json.loads(start)["changes"] if start else {}
os.environ.update({name: value for name, value in changes.items() if value})
"""
"""What a standby process does after its check."""


class Script:
    """The same Python code on every host; `check` and `standby`: what its processes do before."""

    def __init__(self, code: str, check: str = "", standby: str = "") -> None:
        self._code, self._check, self._standby = code, check, standby
        self.environment_of_all: dict[str, str] = {}

    failure_grace_s = 2.0

    def standby_command(self, process: int, *, check: bool) -> list[str] | None:
        before = self._check if check else self._standby
        code = f"{SAY}{before}{START}if start:\n exec({self._code!r})"
        return [sys.executable, "-c", code] if before else None

    def command(self, process: int) -> list[str]:
        return [sys.executable, "-c", SAY + self._code]

    def environment(self, process: int) -> dict[str, str]:
        return {"SLIPWAY_PROCESS_ID": str(process), **self.environment_of_all}


class Preparing(GangMonitor):
    """Wants standby processes at once."""

    def wants_standby(self) -> bool:
        return True


class Seen(Listener):
    """What a gang forwarded; events as the fields of their lines."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.lines: list[tuple[int, str]] = []
        self.react: Callable[[Event], None] = lambda event: None

    def on_event(self, event: Event) -> None:
        self.events.append(to_wire(event))
        self.react(event)

    def on_line(self, process: int, line: str) -> None:
        self.lines.append((process, line))
