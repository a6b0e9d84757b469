"""The forecast of a run as a short table, and the progress of the compiler that it waits for."""

from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from launcher.core.formatting import format_seconds
from launcher.planning.forecast import CostForecast, Forecast, forecast, unknown
from launcher.planning.planner import TrainingLaunch
from trainer.contract.protocol.reports import StepSchedule

LEAST_SHARE = 0.0005
"""Minimum share of the step that a listed part has."""
WHOLE_DOLLARS = 100
"""From this amount on, cents are left out."""


def forecast_table(launch: TrainingLaunch, schedule: StepSchedule) -> Table:
    """Returns the forecast by a compiled schedule as a table."""
    table = Table.grid(padding=(0, 2))
    for row in forecast_rows(launch, schedule):
        table.add_row(*row)
    return table


def forecast_rows(
    launch: TrainingLaunch, schedule: StepSchedule | None = None
) -> list[tuple[str, str]]:
    """Returns titles and texts of the forecast, by a compiled schedule if there is one."""
    found = forecast(launch, schedule)
    if found is None:
        return [("forecast", unknown(launch))]
    lines = _lines(found, launch)
    return [("forecast" if line is lines[0] else "", line) for line in lines]


def _lines(found: Forecast, launch: TrainingLaunch) -> list[str]:
    low, high = found.range.low, found.range.high
    mfu = "" if found.mfu is None else f", MFU {found.mfu:.1%}"
    shown = {
        name: seconds
        for name, seconds in found.parts.items()
        if seconds >= LEAST_SHARE * found.step_time_s
    }
    parts = sorted(shown.items(), key=lambda part: -part[1])
    steps, ratio = launch.job.last_step, found.duration_s / found.step_time_s
    duration = " to ".join(format_seconds(ratio * seconds) for seconds in (low, high))
    return [
        f"{found.step_time_s:.3g} s a step ({low:.3g} to {high:.3g} s), "
        f"{found.tokens_per_s_per_device:,.0f} tokens/s per device{mfu}",
        ", ".join(f"{name} {seconds / found.step_time_s:.1%}" for name, seconds in parts),
        f"{steps:,} steps in {format_seconds(found.duration_s)} ({duration})"
        + (_cost(found.cost) if found.cost else "; the price of a chip is not known"),
        f"by {_basis(found)}",
    ]


def _cost(cost: CostForecast) -> str:
    return (
        f"; {_dollars(cost.dollars)} ({_dollars(cost.low)} to {_dollars(cost.high)}) at "
        f"${cost.price_per_chip_hour:.2f} per chip-hour, {cost.price_source}"
    )


def _dollars(amount: float) -> str:
    return f"${amount:,.0f}" if amount >= WHOLE_DOLLARS else f"${amount:,.2f}"


def _basis(found: Forecast) -> str:
    if found.basis == "compiled schedule":
        return "the compiled schedule"
    if found.validated:
        return "a calibrated estimate; --compile is more exact"
    return "a calibrated estimate that is not validated on such devices"


def elapsed(errors: Console, what: str) -> AbstractContextManager[Progress]:
    """Shows on a terminal what is waited for, and since when, until it is done."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    progress = Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)
    progress.add_task(what, total=None)
    return progress
