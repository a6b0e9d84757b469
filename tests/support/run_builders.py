"""Builds the events of runs by hand."""

from typing import Any, Self

import pytest

from launcher.runs.goodput import Goodput, goodput
from launcher.runs.spans import Span, SpanAccount
from launcher.runs.timeline import Timeline
from tests.support.run_folders import event_of
from trainer.contract.protocol.events import Event, StepEvent

BEGIN_S = 1.8e9
HOUR_S, DAY_S = 3600.0, 86400.0


class RunEvents:
    """Builds the events of a run in the order in which they arrive."""

    def __init__(self, *, clock_s: float = 0.0) -> None:
        """Process 0's clock is ahead by `clock_s`; its events arrive at once."""
        self.lines: list[dict[str, Any]] = []
        self.clock_s = clock_s
        self.now, self._attempt = BEGIN_S, 1

    @property
    def events(self) -> list[Event]:
        return [event_of(line) for line in self.lines]

    def after(self, seconds: float) -> Self:
        self.now += seconds
        return self

    def launcher(self, event: str, **fields: object) -> Self:
        self.lines.append(
            {"event": event, "time": self.now, "attempt": self._attempt, **fields}
        )  # fmt: skip
        return self

    def state(self, state: str) -> Self:
        return self.launcher("state", state=state)

    def ended(self, end_reason: str) -> Self:
        return self.launcher("attempt_ended", end_reason=end_reason)

    def next_attempt(self) -> Self:
        self._attempt += 1
        return self

    def host(self, event: str, **fields: object) -> Self:
        times = {"time": self.now + self.clock_s, "received": self.now}
        self.lines.append(
            {"event": event, "process": 0, "attempt": self._attempt, **times, **fields}
        )
        return self

    def begin(self, phase: str) -> Self:
        return self.host("phase", name=phase, edge="begin")

    def end(self, phase: str) -> Self:
        return self.host("phase", name=phase, edge="end")

    def phase(self, name: str, seconds: float) -> Self:
        return self.begin(name).after(seconds).end(name)

    def steps(self, first: int, last: int, step_s: float = 1.0, data_wait_s: float = 0.0) -> Self:
        for step in range(first, last + 1):
            self.after(step_s).host("step", step=step, data_wait_s=data_wait_s)
        return self

    def started(self) -> Self:
        """Hosts in 5 s, checks in 2 s, imports in 3 s; a short `data` in both programs."""
        self.state("provisioning").after(5).state("starting").after(1).phase("data", 0.5)
        return self.after(0.5).state("running").after(3).phase("data", 0.5)

    def training(self) -> Self:
        """Started, compiled in 8 s, in the phase `train`."""
        return self.started().after(1).phase("compile", 8).begin("train")

    def finished(self) -> Self:
        return self.end("train").after(1).ended("finished").after(1).state("finished")

    def parts(self, now: float | None = None) -> dict[str, Any]:
        return parts(goodput(self.events, now))


def parts(found: Goodput) -> dict[str, Any]:
    """Those that took time."""
    return {str(part): pytest.approx(s) for part, s in found.seconds.items() if s > 1e-6}


def step(number: int, mfu: float | None = None) -> StepEvent:
    return StepEvent(
        process=0,
        step=number,
        loss=5.0 - number,
        step_time_s=0.5,
        tokens_per_s=1600.0,
        learning_rate=1e-3,
        mfu=mfu,
    )


def spans_of(events: list[Event], now: float | None = None) -> list[Span]:
    account, timeline = SpanAccount(), Timeline()
    for event in events:
        account.take(timeline.add(event))
    account.take(timeline.rest())
    account.close(now)
    return account.spans()
