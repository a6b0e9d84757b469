"""The interval between checkpoints for `checkpoint.every_minutes: auto`. Pure.

A save costs C seconds of steps. A fault costs the steps since the last save: half an interval on
average, and the time that a write takes, which the interval does not change. With a mean time M
between faults, an interval of T seconds loses C / T + T / (2 M) of the time, which is least at
T = sqrt(2 C M). T counts from the begin of one save to the begin of the next.

References:
    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974,
    https://doi.org/10.1145/361147.361115
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    FGCS 22(3), 2006, https://doi.org/10.1016/j.future.2004.11.016. T is the first order of both.
    By Daly's complete cost function, it takes at most 0.5 % more than the least time lost and spent
    on saves while C is below M / 10 (tests/unit/contract/test_save_interval.py).
    A. Grattafiori et al., "The Llama 3 Herd of Models", 2024, https://arxiv.org/abs/2407.21783,
    section 3.3.4: the published rate of faults.
"""

import math
from dataclasses import dataclass

from trainer.contract.config.base import Section

DAY_S = 86400.0
PUBLISHED_FAULTS, PUBLISHED_DAYS, PUBLISHED_HOSTS = 419, 54, 2048
"""Unexpected interruptions of Llama 3's training: 16,384 GPUs, 8 on a host."""
HOST_MTBF_S = PUBLISHED_HOSTS * PUBLISHED_DAYS * DAY_S / PUBLISHED_FAULTS
"""Mean time between the faults of one host, in seconds: 264 days."""
ASSUMED_COST_S, ASSUMED_BYTES_PER_S = 1.0, 1e9
"""Cost of a save before one was measured: a second, and that many bytes of a host per second more.
docs/reference/benchmarks.md (in-memory checkpoints) has 1.2 s for half a GiB on a host."""
LONGEST_S = 3600.0
"""Longest interval. Where the optimum is longer, saving takes less than cost / LONGEST_S."""
DOUBT, DOUBT_S = 0.1, 60.0
"""Faults and seconds that are added to those of the run: its hosts may be worse than published.
Without faults for t seconds, saves then take sqrt(2 DOUBT C t) of them, and the first fault costs
about sqrt(C t / (2 DOUBT)): 130 and 660 s of the first day when a save costs a second."""
LEAST_COSTS = 2.0
"""Shortest interval in costs of a save: saves take at most half of the time."""


class SaveStatistics(Section):
    """What is known about the saves and faults of a run when an attempt starts."""

    faults: int = 0
    """Attempts that ended by a fault and lost steps."""
    follows_fault: bool = False
    """Whether the last of them is the attempt before this one."""
    host_s: float = 0.0
    """Time in which the hosts could have had faults: hosts times seconds."""
    blocked_s: float = ASSUMED_COST_S
    """Seconds for which a save blocks the steps."""
    slowed_s: float = 0.0
    """Seconds by which the steps beside a write are longer; noise may make it negative."""
    saves: int = 0
    """Saves that were measured in this run; 0 when the cost is assumed."""

    @property
    def cost_s(self) -> float:
        """Seconds of steps that a save costs."""
        return self.blocked_s + max(0.0, self.slowed_s)


@dataclass(frozen=True)
class SaveInterval:
    """An interval between saves, and what it follows from."""

    seconds: float
    """From the begin of one save to the begin of the next."""
    cost_s: float
    """Seconds of steps that a save costs."""
    blocked_s: float
    """Seconds of these for which it blocks the steps."""
    slowed_s: float
    """Seconds by which steps beside its write are longer; noise may make it negative."""
    saves: int
    """Saves that were measured in this run; 0 when the cost is assumed."""
    mtbf_s: float
    """Mean time between faults that the interval allows for, of all hosts together, in seconds."""
    faults: int
    """Faults of the run so far that lost steps."""

    def __str__(self) -> str:
        """Returns e.g. "every 13 min; a save costs 30 s (assumed), 0 faults so far, ..."."""
        how = "measured" if self.saves else "assumed"
        faults = f"{self.faults} fault{'s' * (self.faults != 1)}"
        return (
            f"every {_duration(self.seconds)}; a save costs {self.cost_s:.2g} s ({how}), "
            f"{faults} so far, allows for one in {_duration(self.mtbf_s)}"
        )


def _duration(seconds: float) -> str:
    for unit, length_s in (("days", DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def assumed_cost_s(host_bytes: int) -> float:
    """Returns the cost of a save, in seconds, of which a host has `host_bytes`."""
    return ASSUMED_COST_S + host_bytes / ASSUMED_BYTES_PER_S


def published_mtbf_s(faults: int, host_s: float, hosts: int) -> float:
    """Returns the mean time between faults of `hosts` hosts, if the published rate is theirs.

    That rate counts as one fault in HOST_MTBF_S, beside the `faults` in `host_s` seconds of hosts.
    """
    return (host_s + HOST_MTBF_S) / ((faults + 1) * hosts)


def mtbf_s(faults: int, host_s: float, hosts: int) -> float:
    """Returns the mean time between faults to allow for, in seconds.

    It is that of the run itself, with DOUBT, until the published one is shorter.
    """
    own_s = (host_s / hosts + DOUBT_S) / (faults + DOUBT)
    return min(own_s, published_mtbf_s(faults, host_s, hosts))


def choose(known: SaveStatistics, hosts: int, *, write_s: float = 0.0) -> SaveInterval:
    """Returns the interval for what is known now.

    `write_s`: seconds from the begin of a save to its commit. The interval is not shorter, because
    a save waits for the one before.
    """
    return _interval(known, mtbf_s(known.faults, known.host_s, hosts), write_s)


def settled(known: SaveStatistics, hosts: int) -> SaveInterval:
    """Returns the longest interval of a run whose hosts fail as often as the published ones."""
    return _interval(known, published_mtbf_s(known.faults, known.host_s, hosts), 0.0)


def _interval(known: SaveStatistics, mean_s: float, write_s: float) -> SaveInterval:
    shortest_s = max(write_s, LEAST_COSTS * known.cost_s)
    optimum_s = math.sqrt(2 * known.cost_s * mean_s)
    seconds = max(shortest_s, min(LONGEST_S, optimum_s))
    return SaveInterval(
        seconds=seconds,
        cost_s=known.cost_s,
        blocked_s=known.blocked_s,
        slowed_s=known.slowed_s,
        saves=known.saves,
        mtbf_s=mean_s,
        faults=known.faults,
    )
