"""Python programs under the launcher's `HostProcess`."""

import os
import sys
import time
from pathlib import Path

from launcher.host.process import HostProcess, OutputUpdate

SAY = """
import json, os, sys
def say(**event):
    os.write(int(os.environ["SLIPWAY_EVENTS_FD"]), json.dumps(event).encode() + b"\\n")
"""


def start(folder: Path, code: str, grace_s: float = 2.0) -> HostProcess:
    command = [sys.executable, "-c", SAY + code]
    return HostProcess(
        command, dict(os.environ), folder / "logs" / "host-0000.log", folder, grace_s
    )


def collect(program: HostProcess, timeout_s: float = 60.0) -> OutputUpdate:
    """All that a program says until it is over, as one batch."""
    events, lines = [], []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        batch = program.poll(1.0)
        events += batch.events
        lines += batch.lines
        if batch.over:
            batch.events, batch.lines = events, lines
            return batch
    raise TimeoutError("the program is not over")


def wait_for_event(program: HostProcess) -> None:
    while not program.poll(1.0).events:
        pass
