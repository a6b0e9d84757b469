"""Events for the launcher: one JSON object per line on a non-blocking pipe."""

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from trainer.contract.protocol.events import Event, HeartbeatEvent, PhaseEvent
from trainer.contract.protocol.wire import encode_fields, to_wire
from trainer.distributed.process_env import Environment
from trainer.telemetry.busy_share import BusyShare

LINE_BYTES = 4000
"""Maximum length of a line. A pipe writes up to 4096 bytes atomically, so lines never mix."""
HEARTBEAT_EVERY_S = 2.0
LAST_WORD_S = 2.0
"""Seconds for which the last event of a process is retried on a full pipe."""
PROBE = bytes(1 << 20)
"""Data whose hash takes about a millisecond; it takes longer on a slow or busy processor."""


class Pace(NamedTuple):
    """Totals of all steps so far."""

    steps: int = 0
    step_time_s: float = 0.0
    host_time_s: float = 0.0
    """Seconds that the main loop of this process did not spend waiting for the devices."""


class Events:
    """Writes events; does nothing without a pipe or after its reader has exited."""

    def __init__(self, environment: Environment):
        self._fd = environment.events_fd
        self._process, self._attempt = environment.process, environment.attempt
        self._phases: list[str] = []
        self._step = 0
        self._pace = Pace()
        self._stop = threading.Event()
        if self._fd is not None:
            os.set_blocking(self._fd, False)

    @property
    def heard(self) -> bool:
        """Whether a launcher is at the other end of the pipe."""
        return self._fd is not None

    def emit(self, event: Event, *, last_word: bool = False) -> None:
        """Sends an event, or drops it when the pipe is full; retries a `last_word` for 2 s."""
        stamps = {"time": time.time(), "process": self._process, "attempt": self._attempt}
        line = _line({**to_wire(event), **stamps})
        deadline = time.monotonic() + (LAST_WORD_S if last_word else 0)
        while not self._write(line) and time.monotonic() < deadline:
            time.sleep(0.01)

    def at_step(self, step: int, step_time_s: float, host_time_s: float) -> None:
        """Records that the main loop has reached `step`, for the next heartbeat.

        `host_time_s` is the part of the step's time not spent waiting for the devices: the host
        that delays the other hosts does not wait itself.
        """
        steps, total_step_s, total_host_s = self._pace
        self._step = step
        self._pace = Pace(steps + 1, total_step_s + step_time_s, total_host_s + host_time_s)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Emits `phase` events around a block; heartbeats carry the innermost phase."""
        with self.doing(name):
            self.emit(PhaseEvent(name=name, edge="begin"))
            yield
        # Not in a `finally`: a phase that fails has not reached its end.
        self.emit(PhaseEvent(name=name, edge="end"))

    @contextmanager
    def doing(self, name: str) -> Iterator[None]:
        """Sets the phase in heartbeats alone, without events: for blocks in every step."""
        self._phases.append(name)
        yield
        self._phases.pop()

    def start_heartbeat(self) -> None:
        """Sends the main loop's last report from a thread until `stop_heartbeat`."""
        if self.heard:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    def stop_heartbeat(self) -> None:
        self._stop.set()

    def _beat(self) -> None:
        before, mean, busy = Pace(), HeartbeatEvent(), BusyShare()
        due_s = time.monotonic() + HEARTBEAT_EVERY_S
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            hashlib.sha256(PROBE).digest()
            # Counted from the due time: a process that gets no processor is late.
            probe_s = time.monotonic() - due_s
            now = self._pace
            if now.steps > before.steps:
                before, mean = now, _mean(before, now)
            beat = replace(mean, cpu_probe_s=probe_s, busy_share=busy.take())
            self.emit(replace(beat, phase=self._now(), step=self._step))
            due_s = time.monotonic() + HEARTBEAT_EVERY_S

    def _now(self) -> str:
        """Returns the innermost phase; outside of one, "start" or "end"."""
        phases = self._phases[-1:]
        return phases[0] if phases else "end" if self._step else "start"

    def _write(self, line: bytes) -> bool:
        """Writes a line. Returns False when the pipe is full."""
        if self._fd is None:
            return True
        try:
            os.write(self._fd, line)
        except BlockingIOError:
            return False
        except OSError:
            self._fd = None
        return True


def _mean(before: Pace, now: Pace) -> HeartbeatEvent:
    """Returns a heartbeat with the mean times of the steps between the two."""
    steps = now.steps - before.steps
    return HeartbeatEvent(
        step_time_s=(now.step_time_s - before.step_time_s) / steps,
        host_time_s=(now.host_time_s - before.host_time_s) / steps,
    )


def _line(fields: dict[str, Any]) -> bytes:
    """Returns one line of JSON; long texts are cut so that the line is written atomically."""
    while True:
        line = encode_fields(fields).encode() + b"\n"
        if len(line) <= LINE_BYTES:
            return line
        longest = max(fields, key=lambda name: len(str(fields[name])))
        fields = {**fields, longest: str(fields[longest])[: len(str(fields[longest])) // 2]}
