"""Finds the checkpoint interval, the spares and the least number of hosts that cost the least.

Each trial rehearses the same faults. The number of hosts and the spares are tried together at the
interval of Young and Daly, then intervals with the best of them.

References:
    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
    FGCS 22(3), 2006.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.rehearsal.faults import FaultRate
from launcher.rehearsal.play import Scenario
from launcher.rehearsal.result import Figures

SPARES = (0, 1, 2, 4)
HOST_SHARES = (1.0, 0.75, 0.5)
"""Tried shares of the hosts with which a run still continues."""
INTERVALS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
"""Tried intervals, as multiples of the one by Young and Daly."""
LEAST_SAVE_S = 0.05
"""Cost of a save that is too small to matter, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One combination, and what it costs."""

    every_steps: int
    """Steps between saves: the job's `checkpoint.every_steps`."""
    spares: int
    """The cluster's `spares`."""
    min_hosts: int
    """Hosts with which the run still continues: the least of the cluster's `hosts` or `slices`."""
    goodput: float | None
    """Mean goodput."""
    days: float | None
    """Mean days until all steps are done; null when some run gives up."""
    cost: float | None
    """Mean cost in dollars, or chip-hours without a price; null when some run gives up."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The best combination, and all that were tried."""

    best: Trial
    trials: Sequence[Trial]


Rehearse = Callable[[Scenario], Figures]


def optimal_interval_s(save_blocked_s: float, rates: Sequence[FaultRate]) -> float:
    """Returns the first-order optimum sqrt(2 C M) of Young and Daly; infinity without faults.

    C is the cost of a save, M the mean time between the faults that lose steps. An announced
    preemption loses none.
    """
    per_s = sum(rate.per_hour for rate in rates if rate.kind != "preemption") / 3600.0
    return math.sqrt(2 * max(LEAST_SAVE_S, save_blocked_s) / per_s) if per_s else math.inf


class Tuner:
    """Tries combinations for one scenario."""

    def __init__(self, scenario: Scenario, interval_s: float, rehearse: Rehearse) -> None:
        """Creates a tuner. `interval_s`: the first interval to try, see `optimal_interval_s`."""
        self._scenario, self._rehearse = scenario, rehearse
        self._found: list[tuple[tuple[bool, float, float], Trial]] = []
        self._all_layouts = _all_fallbacks(scenario.launch)
        step_s, last = scenario.timings.step_s, scenario.launch.job.last_step
        self._steps = [
            min(last, max(1, round(min(share * interval_s, last * step_s) / step_s)))
            for share in INTERVALS
        ]

    def run(self) -> Tuned:
        """Returns the best combination, by cost."""
        middle = self._steps[len(INTERVALS) // 2]
        for spares in self._spares():
            for min_hosts in self._min_hosts():
                self._try(middle, spares, min_hosts)
        best = self._best()
        for every_steps in sorted(set(self._steps) - {middle}):
            self._try(every_steps, best.spares, best.min_hosts)
        return Tuned(best=self._best(), trials=[trial for _, trial in self._found])

    def _best(self) -> Trial:
        return min(self._found, key=lambda found: found[0])[1]

    def _spares(self) -> Sequence[int]:
        return (0,) if self._scenario.launch.cluster.provider.rents_slices else SPARES

    def _min_hosts(self) -> list[int]:
        sizes = [self._scenario.launch.plan.world.processes, *self._all_layouts]
        whole = max(sizes)
        wanted = [min(size for size in sizes if size >= share * whole) for share in HOST_SHARES]
        return sorted(set(wanted), reverse=True)

    def _try(self, every_steps: int, spares: int, min_hosts: int) -> None:
        changed = self._changed(every_steps, spares, min_hosts)
        found = self._rehearse(changed)
        cost = found.price
        trial = Trial(
            every_steps=every_steps,
            spares=spares,
            min_hosts=min_hosts,
            goodput=found.goodput.mean,
            days=found.days.mean,
            cost=cost if math.isfinite(cost) else None,
        )
        goodput = found.goodput.mean or 0.0
        # Where runs give up, the combination that gives up later is the better one.
        self._found.append(((not math.isfinite(cost), cost, -goodput), trial))

    def _changed(self, every_steps: int, spares: int, min_hosts: int) -> Scenario:
        fallbacks = [one for size, one in self._all_layouts.items() if size >= min_hosts]
        layouts = [_with(one, every_steps, spares) for one in fallbacks]
        whole = _with(self._scenario.launch, every_steps, spares)
        assert isinstance(whole, TrainingLaunch)
        return replace(self._scenario, launch=whole, fallbacks=layouts)


def _with(launch: LaunchSpec, every_steps: int, spares: int) -> LaunchSpec:
    job: Any = launch.job
    saves = {"every_steps": every_steps, "every_minutes": None}
    checkpoint = job.checkpoint.model_copy(update=saves)
    return replace(
        launch,
        job=job.model_copy(update={"checkpoint": checkpoint}),
        cluster=launch.cluster.model_copy(update={"spares": spares}),
    )


def _all_fallbacks(launch: TrainingLaunch) -> dict[int, LaunchSpec]:
    """Returns the job on fewer hosts by their number, as far as it fits: tried shares only."""
    cluster, world = launch.cluster, launch.plan.world
    found: dict[int, LaunchSpec] = {}
    for share in HOST_SHARES[1:]:
        if world.slices > 1:
            smaller = world.model_copy(update={"slices": math.ceil(share * world.slices)})
        elif world.platform != "tpu" and cluster.hosts is not None:
            hosts = math.ceil(share * world.hosts_per_slice)
            smaller = world.model_copy(update={"hosts_per_slice": hosts})
        else:
            return {}
        if smaller.processes < world.processes and (plan := launch.plan_on(smaller)):
            found[smaller.processes] = replace(launch, plan=plan)
    return found
