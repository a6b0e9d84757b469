"""`launch rehearse`: rehearses a run with random faults, and prints what to expect of it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launcher.core.errors import UsageError
from launcher.core.events import parse_event
from launcher.core.json_output import print_json
from launcher.planning.forecast import forecast
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.rehearsal.faults import FaultRate, draw_faults
from launcher.rehearsal.measured import timings_of
from launcher.rehearsal.play import DAY_S, Scenario, rehearse
from launcher.rehearsal.result import Figures, Percentiles, figures
from launcher.rehearsal.timings import REPLACEMENT_S, Timings, default_timings
from launcher.rehearsal.tune import Trial, Tuned, Tuner, optimal_interval_s
from launcher.runs.folder import find_run
from trainer.contract.config.job import Job

TUNING_DRAWS = 20
"""Most draws of each combination that `--tune` tries."""


@dataclass(frozen=True, kw_only=True)
class RehearseOptions:
    """The options of `launch rehearse`."""

    faults: Sequence[FaultRate]
    days: float
    draws: int
    seed: int
    step_time_s: float | None
    """Seconds of a step; None: those of the earlier run, else the plan's."""
    like: str | None
    """An earlier run whose timings are used."""
    replacement_s: float | None
    tune: bool
    runs: Path
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class RehearsalResult:
    """What to expect of a run with random faults, from rehearsals of it."""

    job: str
    hosts: int
    """Hosts of the run, without spares."""
    spares: int
    days: float
    """Rehearsed days; a run that finishes or gives up earlier ends."""
    draws: int
    """Number of rehearsed runs."""
    seed: int
    faults: Sequence[FaultRate]
    """Rates of faults of the whole cluster."""
    timings: Timings
    """Seconds of the parts of a run. null: a lost host counts as lost when it is silent."""
    figures: Figures
    tuned: Tuned | None
    """The best checkpoint interval, spares and least hosts; null without `--tune`."""
    notes: Sequence[str]
    """What the figures rest on and what they leave out."""


def rehearse_run(launch: LaunchSpec, options: RehearseOptions) -> None:
    """Rehearses a launch and prints the figures.

    Raises UsageError for a job whose steps are unknown, or without the time of a step.
    """
    result = rehearsal_result(launch, options)
    if options.as_json:
        print_json(result)
    else:
        _print(Console(), result)


def rehearsal_result(launch: LaunchSpec, options: RehearseOptions) -> RehearsalResult:
    """Returns the figures of rehearsals. Raises UsageError, see `rehearse_run`."""
    if not isinstance(launch, TrainingLaunch):
        raise UsageError("rehearse: the steps and saves of a job with `command` are not known")
    launch = _with_one_process_per_host(launch)
    timings, notes = _timings(launch, options)
    scenario = Scenario.of(launch, timings, options.days * DAY_S)
    found = _figures(scenario, options, options.draws)
    tuned = _tune(scenario, options) if options.tune else None
    if found.dollars is None:
        notes.append(
            f"dollars: the price of {launch.cluster.accelerator} is not known; set "
            "provider.price_per_chip_hour in the cluster file"
        )
    return RehearsalResult(
        job=launch.job.name,
        hosts=launch.plan.world.hosts,
        spares=launch.cluster.spares,
        days=options.days,
        draws=options.draws,
        seed=options.seed,
        faults=options.faults,
        timings=timings,
        figures=found,
        tuned=tuned,
        notes=[*notes, *_left_out(launch.job)],
    )


def _with_one_process_per_host(launch: TrainingLaunch) -> TrainingLaunch:
    """Returns a launch on the same hosts: they fail as a whole, whatever runs on them."""
    world = launch.plan.world.model_copy(update={"processes_per_host": 1})
    return replace(
        launch,
        plan=launch.plan.model_copy(update={"world": world}),
        cluster=launch.cluster.model_copy(update={"processes_per_host": 1}),
    )


def _figures(scenario: Scenario, options: RehearseOptions, draws: int) -> Figures:
    """Rehearses the scenario with as many draws; those of one seed are always the same."""
    outcomes = [
        rehearse(
            scenario,
            draw_faults(options.faults, scenario.horizon_s, f"{options.seed} {number}"),
        )
        for number in range(draws)
    ]
    return figures(outcomes, scenario.launch.job.last_step)


def _tune(scenario: Scenario, options: RehearseOptions) -> Tuned:
    if scenario.launch.job.checkpoint is None:
        raise UsageError("--tune: the job saves nothing, found checkpoint: null")
    draws = min(options.draws, TUNING_DRAWS)
    interval_s = optimal_interval_s(scenario.timings.save_blocked_s, options.faults)
    return Tuner(scenario, interval_s, lambda one: _figures(one, options, draws)).run()


def _timings(launch: TrainingLaunch, options: RehearseOptions) -> tuple[Timings, list[str]]:
    """Returns the timings of the rehearsal, and notes about where they come from."""
    notes: list[str] = []
    step_s = options.step_time_s
    if step_s is None and options.like is None:
        found = forecast(launch)
        if found is None:
            raise UsageError(
                "rehearse: the time of a step is not known on these devices. Set --step-time "
                "SECONDS, or --like RUN for that of an earlier run"
            )
        step_s = found.step_time_s
        notes.append(
            f"step time: {step_s:.3g} s, the plan's forecast, {found.range.low:.3g} to "
            f"{found.range.high:.3g} s"
        )
    timings = default_timings(launch, step_s or 0.0)
    if options.like is None:
        notes.append(
            "start, save and restore times: defaults from two hosts that share two cores; --like "
            "RUN takes those of an earlier run"
        )
    else:
        timings = _measured(options.like, timings, launch.job, options)
    if options.replacement_s is not None:
        seconds = options.replacement_s
        timings = replace(timings, replacement_s=seconds if isfinite(seconds) else None)
    elif timings.replacement_s == REPLACEMENT_S:
        notes.append(
            f"a lost host is replaced after {REPLACEMENT_S:.0f} s: an assumption, see "
            "--replacement-s"
        )
    return timings, notes


def _measured(name: str, defaults: Timings, job: Job, options: RehearseOptions) -> Timings:
    """Returns the timings of an earlier run. Raises UsageError for an unknown or short run."""
    folder = find_run(name, options.runs)
    try:
        lines = (folder / "events.jsonl").read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"--like {name}: {folder} cannot be read: {error.strerror}") from None
    events = [event for line in lines if (event := parse_event(line)) is not None]
    found = timings_of(events, defaults, job.retries.standby_after_s)
    if found is None:
        raise UsageError(f"--like {name}: {folder} has no two steps in a row to measure")
    return found if options.step_time_s is None else replace(found, step_s=options.step_time_s)


def _left_out(job: Job) -> list[str]:
    """Returns notes about what is not rehearsed."""
    notes: list[str] = []
    if job.eval is not None:
        notes.append("evaluations are not rehearsed")
    if job.checkpoint is not None and job.checkpoint.in_memory_every_steps:
        notes.append("in-memory checkpoints are not rehearsed: fewer steps are repeated with them")
    return notes


def _print(console: Console, result: RehearsalResult) -> None:
    spares = f" and {result.spares} spares" if result.spares else ""
    rates = ", ".join(f"{one.kind} {one.per_hour * 24:.3g}/day" for one in result.faults)
    console.print(
        Text(
            f"{result.job} on {result.hosts:,} hosts{spares}, {result.draws} draws of "
            f"{result.days:g} days; faults: {rates or 'none'}"
        ),
        soft_wrap=True,
    )
    console.print(_table(result.figures))
    shares = asdict(result.figures.shares).items()
    parts = ", ".join(f"{name} {100 * share:.2f} %" for name, share in shares)
    console.print(Text(f"time: {parts}"), soft_wrap=True)
    states = ", ".join(f"{count} {state}" for state, count in result.figures.states.items())
    console.print(Text(f"at the end: {states}"), soft_wrap=True)
    for reason, count in result.figures.failures.items():
        console.print(Text(f"  {count} failed: {reason}", style="yellow"), soft_wrap=True)
    if result.tuned is not None:
        _print_tuned(console, result.tuned, is_priced=result.figures.dollars is not None)
    for note in result.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)


def _table(found: Figures) -> Table:
    rows: list[tuple[str, Percentiles | None, Callable[[float], str]]] = [
        ("goodput", found.goodput, lambda value: f"{100 * value:.2f} %"),
        ("days for all steps", found.days, lambda value: f"{value:,.2f}"),
        ("chip-hours", found.chip_hours, lambda value: f"{value:,.0f}"),
        ("dollars", found.dollars, lambda value: f"{value:,.0f}"),
        ("attempts", found.attempts, lambda value: f"{value:,.0f}"),
    ]
    table = Table("", "5 %", "median", "95 %", "mean", box=None)
    for name, values, text in rows:
        if values is not None:
            shown = (values.p5, values.p50, values.p95, values.mean)
            table.add_row(name, *("-" if value is None else text(value) for value in shown))
    return table


def _print_tuned(console: Console, tuned: Tuned, *, is_priced: bool) -> None:
    table = Table("every_steps", "spares", "least hosts", "goodput", "days", box=None)
    table.add_column("dollars" if is_priced else "chip-hours")
    for trial in tuned.trials:
        table.add_row(*_cells(trial), style="bold" if trial is tuned.best else None)
    console.print(table)
    best = tuned.best
    console.print(
        Text(
            f"best: checkpoint.every_steps={best.every_steps}, {best.spares} spares, "
            f"continue with {best.min_hosts:,} hosts"
        ),
        soft_wrap=True,
    )


def _cells(trial: Trial) -> list[str]:
    goodput = "-" if trial.goodput is None else f"{100 * trial.goodput:.2f} %"
    days = "-" if trial.days is None else f"{trial.days:,.2f}"
    cost = "-" if trial.cost is None else f"{trial.cost:,.0f}"
    return [
        f"{trial.every_steps:,}",
        str(trial.spares),
        f"{trial.min_hosts:,}",
        goodput,
        days,
        cost,
    ]
