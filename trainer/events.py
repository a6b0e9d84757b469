"""Events for the launcher: one JSON object a line on a pipe that is never waited for."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainer.environment import Environment

LINE_BYTES = 4000
"""Below what a pipe takes in one piece (4096), so that lines never mix."""
HEARTBEAT_EVERY_S = 2.0
LAST_WORD_S = 2.0
"""How long `error` and `finished` are tried on a full pipe."""


class Events:
    """Writes events; without a pipe, or when its reader has gone, it does nothing."""

    def __init__(self, environment: Environment):
        self._fd = environment.events_fd
        self._process, self._attempt = environment.process, environment.attempt
        self._phases: list[str] = []
        self._step = 0
        self._stop = threading.Event()
        if self._fd is not None:
            os.set_blocking(self._fd, False)

    @property
    def heard(self) -> bool:
        """Whether there is a launcher at the other end."""
        return self._fd is not None

    def emit(self, event: str, *, last_word: bool = False, **fields: object) -> None:
        """Sends one event, or drops it where the pipe is full (a `last_word` is tried for 2 s)."""
        head = {"time": time.time(), "process": self._process, "attempt": self._attempt}
        line = _line({**head, "event": event, **fields})
        deadline = time.monotonic() + (LAST_WORD_S if last_word else 0)
        while not self._write(line) and time.monotonic() < deadline:
            time.sleep(0.01)

    def at_step(self, step: int) -> None:
        """The main loop has come to `step`; the next heartbeat says so."""
        self._step = step

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`phase` events around a block; heartbeats carry the innermost phase."""
        self._phases.append(name)
        self.emit("phase", name=name, edge="begin")
        yield
        # Not in a `finally`: what fails in a phase has not come to its end.
        self._phases.pop()
        self.emit("phase", name=name, edge="end")

    def start_heartbeat(self) -> None:
        """Beats from a thread until `stop_heartbeat`, with what the main loop last reported."""
        if self.heard:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def stop_heartbeat(self) -> None:
        self._stop.set()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_EVERY_S):
            phases = self._phases[-1:]
            self.emit("heartbeat", phase=phases[0] if phases else "start", step=self._step)

    def _write(self, line: bytes) -> bool:
        """False where the pipe is full."""
        if self._fd is None:
            return True
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            return False
        except OSError:
            self._fd = None
        return True


def _line(fields: dict[str, object]) -> bytes:
    """One line of JSON; long texts are cut so that it is written in one piece."""
    while True:
        line = json.dumps(fields, ensure_ascii=False, default=str).encode() + b"\n"
        if len(line) <= LINE_BYTES:
            return line
        longest = max(fields, key=lambda name: len(str(fields[name])))
        fields = {**fields, longest: str(fields[longest])[: len(str(fields[longest])) // 2]}
