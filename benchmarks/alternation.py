"""Lets ways of running a job take turns, and compares their steps.

What else a machine does changes from minute to minute, and with it the times of runs that follow
each other. Turns of a few seconds, in a new order in each round, show the same machine to all ways.
A way can be a launch of its own: all launches live at the same time, and all but one are stopped.
"""

import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.assert_no_leftovers import Traces

SETTLE_S = 0.5
"""Seconds at the beginning of a turn that do not count: all timers that are overdue fire."""
PROGRAMS = ("trainer", "standby")
"""Names of the processes that agents watch: an agent ends the attempt of a stopped program."""
RESAMPLES = 1000

Turn = tuple[float, float]
"""Begin and end, in seconds since the epoch."""
Pair = tuple[Sequence[float], Sequence[float]]
"""Seconds of the steps of two ways in one round."""


def alternate(
    ways: Mapping[str, Callable[[], AbstractContextManager[None]]], rounds: int, seconds: float
) -> list[dict[str, Turn]]:
    """Returns the turns of each way in each round; a way's turn is within its context."""
    order, shuffler = list(ways), random.Random(0)
    turns: list[dict[str, Turn]] = []
    for number in range(1, rounds + 1):
        shuffler.shuffle(order)
        turns.append({name: _take_turn(ways[name], seconds) for name in order})
        print(f"\rround {number} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return turns


def _take_turn(way: Callable[[], AbstractContextManager[None]], seconds: float) -> Turn:
    with way():
        time.sleep(SETTLE_S)
        began = time.time()
        time.sleep(seconds)
        return began, time.time()


@contextmanager
def stopped(trees: Collection[Traces]) -> Iterator[None]:
    """Stops process trees. At the end they continue, also after an error."""
    try:
        for traces in trees:
            _stop(traces)
        yield
    finally:
        for traces in trees:
            _proceed(traces)


@contextmanager
def running(traces: Traces) -> Iterator[None]:
    """Continues a stopped process tree, and stops it at the end."""
    _proceed(traces)
    yield
    _stop(traces)


def _stop(traces: Traces) -> None:
    """Stops every process of a tree, also those that others start meanwhile."""
    while running := {p: state for p, state in _states(traces).items() if state not in "Tt"}:
        for process in running:
            _send(process, signal.SIGSTOP)
        if set(running.values()) == {"D"}:
            return  # it may wait for a child that is stopped before its exec, see vfork(2)


def _proceed(traces: Traces) -> None:
    """Continues every process of a tree, in the opposite order."""
    for process in reversed(_states(traces)):
        _send(process, signal.SIGCONT)


def _send(process: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _states(traces: Traces) -> dict[int, str]:
    """Returns the state of each process of a tree, as in proc(5); `PROGRAMS` come last."""
    found: list[tuple[bool, int, str]] = []
    for process in traces.processes():
        with suppress(OSError):
            start, _, rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")
            is_program = start.partition("(")[2] in PROGRAMS
            found.append((is_program, process, rest.split()[0]))
    return {process: state for _, process, state in sorted(found)}


def step_times(events: Iterable[Mapping[str, Any]], turns: Iterable[Turn]) -> list[list[float]]:
    """Returns the seconds of the steps within each turn, from the end of the step before.

    This includes what happens between steps, such as a save.
    """
    ends = {event["step"]: event["time"] for event in events if event["event"] == "step"}
    steps = [(ends[step - 1], end) for step, end in ends.items() if step - 1 in ends]
    return [
        [end - start for start, end in steps if began <= start and end <= ended]
        for began, ended in turns
    ]


def mean_ratio(rounds: Sequence[Pair]) -> float:
    """Returns the median over the rounds of the ratio of their mean steps."""
    return statistics.median(statistics.fmean(own) / statistics.fmean(of) for own, of in rounds)


def with_interval(rounds: Sequence[Pair], statistic: Callable[[Sequence[Pair]], float]) -> str:
    """Returns a statistic of the rounds with its bootstrap interval of 95 %, as text.

    The interval is by percentiles, over rounds that are drawn with replacement.

    References:
        B. Efron and R. J. Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13.
    """
    draw = random.Random(0)
    drawn = sorted(statistic(draw.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES))
    edge = RESAMPLES // 40
    return f"{statistic(rounds):.3f} ({drawn[edge]:.3f} to {drawn[-1 - edge]:.3f})"
