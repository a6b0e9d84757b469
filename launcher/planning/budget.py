"""The budget of a job: what it is checked against before a run and during one. Pure."""

from launcher.cluster.prices import chips, price_per_chip_hour
from launcher.cluster.schema import Cluster
from launcher.core.formatting import format_seconds
from launcher.core.usage import Usage
from launcher.planning.spec import LaunchSpec
from trainer.contract.config.budget import Budget

UNITS = {"hours": "{:,.4g} h", "chip_hours": "{:,.4g} chip-hours", "dollars": "${:,.2f}"}
"""Format of an amount, by the key of the budget."""


def limits(budget: Budget) -> dict[str, float]:
    """Returns the amounts that the budget limits, by key."""
    return {key: value for key in UNITS if (value := getattr(budget, key)) is not None}


def problem(budget: Budget | None, cluster: Cluster) -> str:
    """Returns why a budget cannot be kept on a cluster; "" when it can."""
    if budget is None or budget.dollars is None or price_per_chip_hour(cluster) is not None:
        return ""
    return (
        f"the price of {cluster.accelerator} is not known. "
        "Set provider.price_per_chip_hour in the cluster file, or limit chip_hours instead"
    )


def forecast(launch: LaunchSpec, done: int = 0) -> Usage | None:
    """Returns the least that the steps of a job use after `done` of them.

    Returns None without bounds of a step's time.
    """
    if launch.bounds is None or launch.steps is None:
        return None
    hours = (launch.steps - done) * launch.bounds.step_s / 3600
    chip_hours = hours * chips(launch.provisioned_world)
    price = price_per_chip_hour(launch.cluster)
    if price is None:
        return Usage(hours, chip_hours, unpriced_chip_hours=chip_hours)
    return Usage(hours, chip_hours, chip_hours * price)


def describe_forecast(launch: LaunchSpec, done: int = 0) -> str:
    """Describes `forecast`: "9 steps take at least 12 s, 0.05 chip-hours, $0.17"; "" without it.

    `done`: steps that an earlier attempt has saved. The cost is left out when the price is not
    known. Simulated hosts have no forecast.
    """
    least = forecast(launch, done)
    if least is None or launch.steps is None or launch.plan.world.simulated:
        return ""
    cost = "" if least.cost is None else f", ${least.cost:,.2f}"
    amounts = f"{format_seconds(least.hours * 3600)}, {least.chip_hours:,.2f} chip-hours{cost}"
    steps = f"{launch.steps - done:,} more" if done else f"{launch.steps:,}"
    return f"{steps} steps take at least {amounts}"


def _amounts(budget: Budget, used: Usage) -> str:
    """Returns what is used up: "12 h of 12 h (budget.hours)"."""
    over = exceeded(budget, used)
    amounts = (
        f"{UNITS[key].format(getattr(used, key))} of {UNITS[key].format(limits(budget)[key])}"
        for key in over
    )
    return f"{', '.join(amounts)} ({', '.join(f'budget.{key}' for key in over)})"


def warning(launch: LaunchSpec) -> str:
    """Returns a warning when all steps use more than the budget, even at their bound; else ""."""
    budget, least = launch.job.budget, forecast(launch)
    if budget is None or least is None or launch.steps is None:
        return ""
    over = exceeded(budget, least)
    if not over:
        return ""
    share = min(limits(budget)[key] / getattr(least, key) for key in over)
    return (
        f"budget: {launch.steps:,} steps take at least {_amounts(budget, least)}; the run will "
        f"stop at step {int(share * launch.steps):,} or before"
    )


def exceeded(budget: Budget, used: Usage) -> list[str]:
    """Returns the keys of the amounts that are used up."""
    return [key for key, limit in limits(budget).items() if getattr(used, key) >= limit]


def spent(budget: Budget | None, used: Usage) -> str:
    """Describes which part of a budget is used up; "" while none is."""
    if budget is None or not exceeded(budget, used):
        return ""
    return f"the budget is used up: {_amounts(budget, used)}"


def raised(budget: Budget, used: Usage) -> str:
    """Returns overrides that raise what is used up to the next multiple of the budget."""
    more = {
        key: limit * (1 + getattr(used, key) // limit)
        for key, limit in limits(budget).items()
        if key in exceeded(budget, used)
    }
    return " ".join(f"budget.{key}={value:.12g}" for key, value in more.items())
