"""`launch sweep`: runs the points of a sweep, and shows them as a table."""

from rich.console import Console
from rich.text import Text

from launcher.commands.groups.group import only_command, stop_running
from launcher.commands.sweep_plan import SweepPlan
from launcher.commands.sweep_runner import PointRun, SweepOptions, SweepRunner
from launcher.core.errors import InterruptError, JobError
from launcher.core.formatting import pluralize
from launcher.core.json_output import print_json
from launcher.core.output import unfailing_output
from launcher.core.printable import plain
from launcher.core.signals import ending_on_signals
from launcher.core.states import RunState
from launcher.sweep import halving
from launcher.ui import sweep_view
from launcher.ui.sweep_view import PointResult


@unfailing_output()
def sweep(plan: SweepPlan, options: SweepOptions, *, as_json: bool, command: str) -> None:
    """Runs a sweep and prints its table. `command` continues it.

    Raises JobError when points did not finish, InterruptError after a signal.
    """
    console = Console(stderr=as_json)

    def print_line(text: str) -> None:
        console.print(Text(plain(text)), soft_wrap=True)

    with only_command(plan.runs, plan.name, "sweep"), ending_on_signals() as interrupts:
        print_line(_announcement(plan))
        runner = SweepRunner(plan, options, interrupts, print_line)
        runner.run()
        stopped = stop_running(runner.runs) if interrupts.asked else []
    rows = sorted(map(_row, runner.runs), key=lambda row: row.order)
    if as_json:
        print_json(sweep_view.result(plan.name, plan.rungs, rows))
    else:
        sweep_view.show(rows)
    errors = [str(run.error) for run in runner.runs if run.error]
    if interrupts.asked:
        raise InterruptError(
            f"interrupted; {pluralize(len(stopped), 'running point')} stopped with a checkpoint",
            details=errors,
            hint=f"Continue: {command}",
        )
    if errors:
        raise JobError(
            f"{len(errors)} of {pluralize(len(rows), 'point')} did not finish",
            details=errors,
            hint=f"Try again: {command}",
        )


def _announcement(plan: SweepPlan) -> str:
    """Describes the sweep before it starts."""
    points, shapes = len(plan.points), {planned.shape for planned in plan.points}
    text = f"{plan.name}: {pluralize(points, 'point')}, {pluralize(len(shapes), 'shape')}"
    if len(plan.rungs) < 2:
        return text
    steps, whole = halving.most_steps(plan.rungs, points), plan.rungs[-1] * points
    at = ", ".join(map(str, plan.rungs[:-1]))
    return f"{text}; the better half continues at step {at}: {steps} of {whole} steps at most"


def _row(run: PointRun) -> PointResult:
    found, spec = run.progress, run.planned.spec
    status = found and found.status
    evaluations = found.evaluations if found else {}
    state = status.displayed_state if status else "failed" if run.error else "not started"
    if found and state == RunState.FINISHED and not found.has_reached(spec.steps):
        state = "stopped early"
    return PointResult(
        name=run.point.name,
        folder=str(spec.run_dir),
        values=run.point.values,
        state=state,
        error=str(run.error) if run.error else None,
        step=status and status.step,
        steps=spec.steps,
        eval_loss=evaluations[max(evaluations)] if evaluations else None,
        loss=status and status.loss,
        seconds=found and found.seconds,
        compilations=found.compilations if found else 0,
    )
