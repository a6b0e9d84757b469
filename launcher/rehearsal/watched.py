"""The processes of a rehearsed attempt whose events the real detectors see."""

from collections.abc import Callable, Collection
from typing import Literal

from launcher.core.results import Hang
from launcher.gang.monitor import GangMonitor
from launcher.gang.watch import CHECK_INTERVAL_S
from launcher.rehearsal.hosts import StubHosts
from trainer.contract.protocol.events import HeartbeatEvent, PhaseEvent, StartedEvent, StepEvent

HEARTBEAT_S = 2.0
"""Seconds between the heartbeats of a program."""
PROBE_S = 0.001
"""The probe of a processor that has nothing else to do."""


class Watched:
    """Sends the events of some processes; those of all others would be alike."""

    def __init__(self, hosts: StubHosts, monitor: GangMonitor, processes: Collection[int]) -> None:
        self._hosts, self._clock, self._monitor = hosts, hosts.clock, monitor
        self._processes = sorted(processes)
        self._phases, self._step = ["start"], 0
        """The phases in progress, the innermost last."""
        self._asleep: int | None = None
        """The process that sleeps; None when none does."""

    def started(self) -> None:
        """Sends the start of every process."""
        for process in self._processes:
            self._send(StartedEvent(time=self._clock.now_s, process=process))

    def phase(self, name: str, edge: Literal["begin", "end"]) -> None:
        """Sends the begin or the end of a phase of every process."""
        if edge == "begin":
            self._phases.append(name)
        else:
            self._phases.remove(name)
        for process in self._processes:
            event = PhaseEvent(time=self._clock.now_s, process=process, name=name, edge=edge)
            self._send(event)

    def end_phases(self) -> None:
        """Sends the ends of all phases in progress."""
        while len(self._phases) > 1:
            self.phase(self._phases[-1], "end")

    def stepped(self, step: int) -> None:
        """Sends the end of a step of every process."""
        self._step = step
        for process in self._processes:
            self._send(StepEvent(time=self._clock.now_s, process=process, step=step))

    def reported(self, step: int, process: int) -> None:
        """Sends the last step of one process, at the end of its attempt."""
        self._send(StepEvent(time=self._clock.now_s, process=process, step=step))

    def pass_step(self, seconds: float, pass_time: Callable[[float], None]) -> None:
        """Lets the time of a step pass with `pass_time`, with the heartbeats in it."""
        end_s = self._clock.now_s + seconds
        while (left_s := end_s - self._clock.now_s) > HEARTBEAT_S:
            pass_time(HEARTBEAT_S)
            self._beat()
        pass_time(left_s)

    def until_hang(self, process: int) -> Hang:
        """Lets a process sleep, in the wait for its next batch if it trains, until that counts as
        a hang. Returns the hang."""
        self._asleep = process
        if self._phases[-1] == "train":
            begin = PhaseEvent(time=self._clock.now_s, process=process, name="data", edge="begin")
            self._send(begin)
        next_beat_s = self._clock.now_s
        while True:
            if self._clock.now_s >= next_beat_s:
                next_beat_s += HEARTBEAT_S
                self._beat()
            if hang := self._monitor.hang():
                return hang
            self._clock.sleep(CHECK_INTERVAL_S)

    def _beat(self) -> None:
        for process in self._processes:
            is_asleep = process == self._asleep
            waits_for_data = is_asleep and self._phases[-1] == "train"
            self._send(
                HeartbeatEvent(
                    time=self._clock.now_s,
                    process=process,
                    phase="data" if waits_for_data else self._phases[-1],
                    step=self._step,
                    cpu_probe_s=PROBE_S,
                    busy_share=0.0 if is_asleep else 1.0,
                )
            )

    def _send(self, event: HeartbeatEvent | PhaseEvent | StartedEvent | StepEvent) -> None:
        self._hosts.listener.on_event(event)
