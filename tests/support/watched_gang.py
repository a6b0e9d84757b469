"""A gang of hosts that a test plays, watched by a clock of the test's own."""

from typing import Any

from launcher.core.results import Hang
from launcher.health.hangs import HangDetector, Limits
from tests.support.run_folders import event_of

LIMITS = Limits()
POLL_INTERVAL_S, BEAT_S = 0.5, 2.0
IDLE = {"busy_share": 0.002, "cpu_probe_s": 0.001}
LONGEST_S = max([*LIMITS.phase_s.values(), LIMITS.other_phases_s])


class Gang:
    """Hosts that send heartbeats, and the events that a test gives them."""

    def __init__(
        self, processes: int = 2, limits: Limits = LIMITS, *, expects_events: bool = False
    ) -> None:
        self.watch = HangDetector(processes, limits, expects_events=expects_events)
        self.now = 1000.0
        self.at: dict[int, tuple[str, int]] = dict.fromkeys(range(processes), ("start", 0))
        self.busy: dict[int, dict[str, float]] = {}
        """What the heartbeats of a process say of its use of the processor."""

    def say(self, process: int, event: str, **fields: Any) -> None:
        self.watch.on_event(event_of({"process": process, "event": event, **fields}), self.now)

    def begin(self, phase: str, *processes: int) -> None:
        for process in processes or self.at:
            self.at[process] = (phase, self.at[process][1])
            self.say(process, "phase", name=phase, edge="begin")

    def step(self, number: int, *processes: int) -> None:
        for process in processes or self.at:
            self.at[process] = ("train", number)
            self.say(process, "step", step=number)

    def train(self, steps: int = 10, step_s: float = 1.0, after: int = 0) -> None:
        """Every host makes steps, and none of that is a hang."""
        self.begin("train")
        for number in range(after + 1, after + steps + 1):
            assert self.wait(step_s) is None
            self.step(number)

    def beat(self, *silent: int) -> None:
        for process, (phase, step) in self.at.items():
            if process not in silent:
                busy = self.busy.get(process, {})
                self.say(process, "heartbeat", phase=phase, step=step, **busy)

    def wait(self, seconds: float, *silent: int) -> Hang | None:
        """Heartbeats and looks for so long, or until there is a hang."""
        until, beat_at = self.now + seconds, self.now
        while self.now < until:
            if self.now >= beat_at:
                self.beat(*silent)
                beat_at += BEAT_S
            self.now = min(self.now + POLL_INTERVAL_S, until)
            if hang := self.watch.poll(self.now):
                return hang
        return None

    def end(self, process: int) -> None:
        self.watch.on_end(process)
        del self.at[process]


def who(hang: Hang | None) -> list[int]:
    assert hang is not None
    return [one.process for one in hang.behind]
