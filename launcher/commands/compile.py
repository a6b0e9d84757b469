"""`launch plan --compile`: asks the TPU compiler whether the step fits."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.progress import Progress
from rich.text import Text

from launcher.commands.plan_result import PlanResult, plan_result
from launcher.commands.search import Advice, advise
from launcher.core.errors import InterruptError, JobError, UsageError
from launcher.core.formatting import format_bytes, format_seconds
from launcher.core.json_output import print_json
from launcher.core.signals import ending_on_signals
from launcher.executors.compile_check import describe_misfit, memory_share
from launcher.planning.compiler import compilation, preliminary
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.planning.trainer_process import TrainerProcessError
from launcher.ui import collectives_view
from launcher.ui.forecast_view import elapsed, forecast_table
from launcher.ui.plan_view import print_plan
from trainer.contract.config.model import Model
from trainer.contract.estimates.memory import footprint
from trainer.contract.protocol.reports import CompileReport

CODE_FOLLOWS = "compiling its code, which the forecast needs"


@dataclass(frozen=True, kw_only=True)
class CompiledPlanResult(PlanResult, CompileReport):
    """The plan of a run, with the result of `--compile`."""

    estimate: Mapping[str, int] | None
    """Estimated bytes by part; None for a custom model."""
    advice: Advice | None
    """A suggested alternative; None when there is nothing to suggest."""


def compile_plan(launch: LaunchSpec, *, shardings: bool, as_json: bool) -> None:
    """Prints the plan with the compiler's verdict.

    Raises JobError when the step does not fit, UsageError when there is no verdict.
    """
    errors = Console(stderr=True)
    if not as_json:
        print_plan(Console(), launch, shardings=shardings, forecasts=False)
    try:
        with ending_on_signals(), elapsed(errors, _compiling(launch)) as progress:
            found = compile_step(launch, progress, is_quiet=as_json)
    except TrainerProcessError as error:
        raise UsageError(f"--compile: {error}") from None
    except KeyboardInterrupt:
        raise InterruptError("interrupted; the compiler has ended") from None
    assert isinstance(launch, TrainingLaunch), "else there is no verdict"
    parts, advice = _estimate(launch), advise(launch, found)
    if as_json:
        plan = vars(plan_result(launch, found.schedule))
        print_json(CompiledPlanResult(**plan, **vars(found), estimate=parts, advice=advice))
    else:
        _print(Console(), found, parts, advice)
        if found.schedule:
            Console().print(Padding(forecast_table(launch, found.schedule), (1, 0, 0, 0)))
    if not found.fits:
        raise JobError(describe_misfit(found))


def _compiling(launch: LaunchSpec) -> str:
    return f"compiling the step for {launch.plan.world.accelerator}"


def compile_step(launch: LaunchSpec, progress: Progress, *, is_quiet: bool) -> CompileReport:
    """Compiles the step and returns the report. Raises TrainerProcessError.

    Prints that the step fits as soon as that is known, unless `is_quiet`.
    """
    with compilation(launch) as call:
        if early := preliminary(call):
            progress.update(progress.task_ids[0], description=CODE_FOLLOWS)
            if not is_quiet:
                text = f"the step fits: needs at most {memory_share(early)}, without its code"
                progress.console.print(Text(text), soft_wrap=True)
        return call.answer(CompileReport)


def _estimate(launch: TrainingLaunch) -> dict[str, int] | None:
    """Estimates bytes by part, which the compiler does not report.

    Returns None for a custom model.
    """
    if not isinstance(launch.job.model, Model):
        return None
    return footprint(launch.job, launch.plan).parts


def _print(
    console: Console, verdict: CompileReport, estimate: dict[str, int] | None, advice: Advice | None
) -> None:
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in verdict.memory.items())
    lines = [f"compiled in {format_seconds(verdict.compile_s)}; per device: {parts}"]
    if estimate:
        lines.append(
            f"of the temporaries, by estimate: gradients {format_bytes(estimate['gradients'])}, "
            f"activations kept for the backward pass {format_bytes(estimate['kept'])}"
        )
    if verdict.host_bytes:
        lines.append(f"in the memory of the host, per device: {format_bytes(verdict.host_bytes)}")
    if verdict.evaluation_bytes:
        lines.append(f"an evaluation needs {format_bytes(verdict.evaluation_bytes)}")
    if verdict.products:
        counts = ", ".join(f"{count} of {dtypes}" for dtypes, count in verdict.products.items())
        lines.append(f"matrix products of a step on each device, without kernels: {counts}")
    lines.append(verdict.message or f"fits: needs {memory_share(verdict)}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if collectives := verdict.collectives:
        console.print(Padding(collectives_view.table(collectives), (1, 0, 0, 0)))
        console.print(Text(collectives_view.summary(collectives)), soft_wrap=True)
        if strategies := verdict.strategies:
            console.print(Text(collectives_view.shares(strategies)), soft_wrap=True)
    if advice:
        console.print(Text(advice.text), soft_wrap=True)
