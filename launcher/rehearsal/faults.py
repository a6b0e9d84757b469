"""Faults of a rehearsal: their rates as text, and random times from these rates. Pure."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trainer.contract.config.errors import suggest
from trainer.contract.config.loader import ConfigError
from trainer.contract.errors import Problem

OPTION = "--faults"
EXPECTED = "KIND N/PERIOD, such as host 1/3h"
PERIODS_S = {"h": 3600.0, "hour": 3600.0, "day": 86400.0, "week": 604800.0, "month": 2592000.0}
"""Seconds of a period; a month has 30 days."""
MOST_PER_HOUR = 3600.0
"""Rates above one fault a second are mistakes."""
RATE = re.compile(
    r"(?P<kind>\S+)\s+(?P<count>\d+(?:\.\d+)?)\s*/\s*(?P<periods>\d+(?:\.\d+)?)?\s*(?P<unit>\w+)"
)


class FaultKind(StrEnum):
    """What goes wrong."""

    HOST = "host"
    """A host is gone, with all that runs on it and without a notice."""
    PROCESS = "process"
    """The program of a host crashes; its host stays."""
    HANG = "hang"
    """The program of a host sleeps in the middle of a step; the others wait for it."""
    PREEMPTION = "preemption"
    """The platform announces that it will take a host, and takes it."""


@dataclass(frozen=True, kw_only=True)
class FaultRate:
    """How often a kind of fault hits the whole cluster."""

    kind: FaultKind
    per_hour: float


@dataclass(frozen=True, order=True)
class Fault:
    """A fault at a moment of a rehearsal."""

    at_s: float
    """Seconds since the begin of the run."""
    kind: FaultKind
    victim: float
    """Position of the host among those of the cluster, from 0 to 1 (exclusive)."""

    def host(self, count: int) -> int:
        """Returns the number of the host that it hits, of `count`."""
        return min(int(self.victim * count), count - 1)


def parse_faults(text: str) -> list[FaultRate]:
    """Reads rates like "host 1/3h, preemption 2/day", per cluster; "" means no faults.

    Raises ConfigError with every part that is no rate.
    """
    rates: list[FaultRate] = []
    problems: list[Problem] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _parse(part)
        if isinstance(found, Problem):
            problems.append(found)
        elif any(found.kind is rate.kind for rate in rates):
            problems.append(_problem(f"{found.kind} has two rates", part, "one rate for each kind"))
        else:
            rates.append(found)
    if problems:
        raise ConfigError(problems)
    return rates


def _parse(part: str) -> FaultRate | Problem:
    match = RATE.fullmatch(part)
    if match is None:
        return _problem(f"expected {EXPECTED}, found {part!r}", part, EXPECTED)
    kinds = [str(kind) for kind in FaultKind]
    if match["kind"] not in kinds:
        valid = f"one of {', '.join(kinds)}"
        hint = suggest(match["kind"], kinds)
        return _problem(f"{match['kind']!r} is not {valid}.{hint}".rstrip("."), part, valid)
    unit = match["unit"]
    period_s = PERIODS_S.get(unit) or PERIODS_S.get(unit.removesuffix("s"))
    if period_s is None:
        valid = f"one of {', '.join(PERIODS_S)}"
        return _problem(f"the period {unit!r} is not {valid}", part, valid)
    periods = float(match["periods"] or 1)
    per_hour = float(match["count"]) * 3600.0 / (periods * period_s) if periods else 0.0
    if not 0 < per_hour <= MOST_PER_HOUR:
        valid = "a rate above 0, and of one per second at most"
        return _problem(f"expected {valid}, found {part!r}", part, valid)
    return FaultRate(kind=FaultKind(match["kind"]), per_hour=per_hour)


def _problem(message: str, found: str, expected: str) -> Problem:
    return Problem(message=message, key=OPTION, found=found, expected=expected)


def draw_faults(rates: Sequence[FaultRate], horizon_s: float, seed: str) -> list[Fault]:
    """Returns random faults in the order of time: a Poisson process for each rate.

    The times of one kind do not depend on the other rates, and those of a lower rate are among
    those of a higher one only by chance: compare averages, not single draws.
    """
    faults: list[Fault] = []
    for rate in rates:
        source = random.Random(f"{seed} {rate.kind}")
        at_s = source.expovariate(rate.per_hour / 3600.0)
        while at_s < horizon_s:
            faults.append(Fault(at_s, rate.kind, source.random()))
            at_s += source.expovariate(rate.per_hour / 3600.0)
    return sorted(faults)
