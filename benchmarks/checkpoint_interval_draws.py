"""Runs that are drawn with faults, for checkpoint_interval.py: fixed and automatic intervals."""

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from launcher.core.events import AttemptEndedEvent
from launcher.core.states import EndReason
from launcher.runs.save_account import SaveAccount
from trainer.checkpoint.auto_interval import AutoInterval
from trainer.contract.planning.save_interval import SaveInterval, SaveStatistics
from trainer.contract.protocol.events import CheckpointIntervalEvent, InitializedEvent

RESTART_S = 5.0
"""Seconds from a fault to the next attempt."""


class Save(NamedTuple):
    """One measured save, in seconds."""

    blocked_s: float
    slowed_s: float
    """Seconds by which the steps beside its write are longer than others."""
    write_s: float
    """From its begin to its commit."""


def slow_down_s(saves: Sequence[Save]) -> float:
    """Returns the seconds by which a save slows the steps. The rest of `slowed_s` is noise."""
    return max(0.0, statistics.fmean(save.slowed_s for save in saves))


class Policy:
    """A fixed interval. The loop of `_draw` reports to it what happens."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def start(self, now_s: float) -> None:
        """An attempt begins."""

    def save(self, now_s: float, save: Save) -> None:
        """A save begins."""

    def commit(self, now_s: float) -> None:
        """It is committed."""

    def fault(self, now_s: float) -> None:
        """A fault ends the attempt."""


@dataclass
class Auto(Policy):
    """The automatic interval, with the launcher's account of the faults between the attempts."""

    step_s: float
    account: SaveAccount = field(default_factory=SaveAccount)
    seconds: float = 0.0

    def start(self, now_s: float) -> None:
        self.account.add(InitializedEvent(time=now_s, process=0, processes=1))
        known = self.account.statistics(SaveStatistics())
        self.interval = AutoInterval(known, 1, now_s, self._report)
        for _ in range(5):
            self.interval.stepped(self.step_s)
        self.seconds = self.interval.seconds

    def save(self, now_s: float, save: Save) -> None:
        self.interval.stepped(self.step_s)
        self.interval.saved(now_s, save.blocked_s)
        self.interval.stepped(self.step_s + save.slowed_s)
        self.seconds = self.interval.seconds

    def commit(self, now_s: float) -> None:
        self.interval.ended(now_s, is_saved=True)
        self.seconds = self.interval.seconds

    def fault(self, now_s: float) -> None:
        self.account.add(AttemptEndedEvent(time=now_s, end_reason=EndReason.CRASH))

    def _report(self, chosen: SaveInterval, _: bool) -> None:
        self.account.add(CheckpointIntervalEvent(process=0, **vars(chosen)))


@dataclass
class Drawn:
    """A run that is drawn. Its clock counts the time of steps and saves, without restarts.

    Faults come by this clock, so that all policies meet the same ones.
    """

    policy: Policy
    step_s: float
    saves: Sequence[Save]
    random: random.Random
    now_s: float = 0.0
    done_s: float = 0.0
    committed_s: float = 0.0
    restarts_s: float = 0.0

    def overhead_s(self, work_s: float, faults: Iterator[float]) -> float:
        """Returns the seconds lost and spent on saves until `work_s` seconds of steps are done."""
        for fault_s in faults:
            if self._attempt(work_s, fault_s):
                break
            self.policy.fault(fault_s + self.restarts_s)
            self.now_s, self.done_s = fault_s, self.committed_s
            self.restarts_s += RESTART_S
        return self.now_s - work_s

    def _attempt(self, work_s: float, fault_s: float) -> bool:
        """Runs until the fault or the end; returns whether it is the end."""
        self.policy.start(self.now_s + self.restarts_s)
        began_s, commit_s, written_s = self.now_s, math.inf, 0.0
        while True:
            due_s = began_s + math.ceil(self.policy.seconds / self.step_s) * self.step_s
            end_s = self.now_s + work_s - self.done_s
            at_s = min(max(due_s, self.now_s), commit_s, fault_s, end_s)
            self.done_s += max(0.0, at_s - self.now_s)
            self.now_s = max(self.now_s, at_s)
            if at_s in (fault_s, end_s):
                return at_s == end_s
            if at_s < commit_s < math.inf:  # a save is due, and waits for the one before
                at_s = self.now_s = min(commit_s, fault_s)
            if at_s == commit_s:
                self.committed_s, commit_s = written_s, math.inf
                self.policy.commit(at_s + self.restarts_s)
                continue
            if at_s == fault_s:
                return False
            save = self.random.choice(self.saves)
            self.policy.save(self.now_s + self.restarts_s, save)
            began_s, commit_s, written_s = self.now_s, self.now_s + save.write_s, self.done_s
            self.now_s += save.blocked_s + slow_down_s(self.saves)


def fault_times(mean_s: float, seed: int) -> Iterator[float]:
    """Yields the times of a Poisson process, in seconds."""
    draws, time_s = random.Random(seed), 0.0
    while True:
        time_s += draws.expovariate(1 / mean_s)
        yield time_s
