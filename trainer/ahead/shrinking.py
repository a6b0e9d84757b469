"""Worlds that a run may shrink to, and the numbers that its processes may have there."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from trainer.contract.planning.plan import Plan, World

PLANS = "plans/smaller-*.json"
"""Plans of the smaller worlds, in the run's folder; the launcher writes them."""


def smaller_plans(run_dir: Path, now: World) -> list[tuple[Path, Plan]]:
    """Returns file and plan of each world that a run may shrink to from `now`, the largest first.

    A shrink usually loses one host or slice, so the largest is the likeliest.
    """
    plans = [(path, Plan.model_validate_json(path.read_text())) for path in run_dir.glob(PLANS)]
    smaller = [(path, plan) for path, plan in plans if plan.world.hosts < now.hosts]
    return sorted(smaller, key=lambda found: -found[1].world.hosts)


def numbers_after(process: int, now: World, smaller: World) -> Iterator[int]:
    """Yields the numbers that a process may have after a shrink, the likeliest first.

    The hosts that stay keep their order. Whole slices are lost where there are several.
    """
    unit = now.processes_per_host * (now.hosts_per_slice if now.slices > 1 else 1)
    lost = (now.processes - smaller.processes) // unit
    for lost_before in range(lost + 1):
        number = process - lost_before * unit
        if 0 <= number < smaller.processes:
            yield number


def work_of(process: int, now: World, plans: Iterable[tuple[Path, Plan]]) -> list[tuple[Path, int]]:
    """Returns the plan files and the number in each for which a process's host compiles."""
    return [
        (path, number) for path, plan in plans for number in numbers_after(process, now, plan.world)
    ]
