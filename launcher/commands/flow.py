"""`launch flow`: runs the steps of a flow, and shows them as a table."""

from rich.console import Console
from rich.text import Text

from launcher.commands.flow_plan import FlowPlan
from launcher.commands.flow_runner import FlowOptions, FlowRunner, StepRun
from launcher.commands.groups.group import only_command, stop_running
from launcher.core.errors import InterruptError, error_of
from launcher.core.formatting import pluralize
from launcher.core.json_output import print_json
from launcher.core.output import unfailing_output
from launcher.core.printable import plain
from launcher.core.signals import ending_on_signals
from launcher.core.states import RunState
from launcher.ui import flow_view
from launcher.ui.flow_view import FlowResult, StepResult


@unfailing_output()
def run_flow(plan: FlowPlan, options: FlowOptions, *, as_json: bool, command: str) -> None:
    """Runs a flow and prints its table. `command` continues it.

    Raises the error of the first step that did not finish, InterruptError after a signal.
    """
    console = Console(stderr=as_json)

    def print_line(text: str) -> None:
        console.print(Text(plain(text)), soft_wrap=True)

    with only_command(plan.runs, plan.name, "flow"), ending_on_signals() as interrupts:
        names = ", ".join(step.name for step in plan.steps)
        print_line(f"{plan.name}: {pluralize(len(plan.steps), 'step')}: {names}")
        runner = FlowRunner(plan, options, interrupts, print_line)
        runner.run()
        stopped = stop_running(runner.runs) if interrupts.asked else []
    rows = list(map(_row, runner.runs))
    if as_json:
        print_json(FlowResult(name=plan.name, steps=rows))
    else:
        flow_view.show(rows)
    failed = [run for run in runner.runs if run.error]
    details = [str(run.error) for run in failed]
    if interrupts.asked:
        raise InterruptError(
            f"interrupted; {pluralize(len(stopped), 'running step')} stopped with a checkpoint",
            details=details,
            hint=f"Continue: {command}",
        )
    if failed:
        _fail(runner.runs, failed, details, command)


def _fail(runs: list[StepRun], failed: list[StepRun], details: list[str], command: str) -> None:
    """Raises an error with the exit code of the first step that did not finish."""
    first = failed[0]
    assert first.error
    cancelled = sum(bool(run.cancelled_by) for run in runs)
    text = f"{', '.join(run.name for run in failed)} did not finish"
    error = error_of(
        first.error.exit_code,
        f"{text}; {pluralize(cancelled, 'step')} cancelled" if cancelled else text,
    )
    error.details = details
    output = f"launch logs {first.name}" if first.progress else ""
    error.hint = "\n".join(
        filter(None, [output and f"Its output: {output}", f"Try again: {command}"])
    )
    raise error


def _row(run: StepRun) -> StepResult:
    found = run.progress
    status = found and found.status
    evaluations = found.evaluations if found else {}
    state = status.displayed_state if status else "failed" if run.error else "not started"
    return StepResult(
        name=run.name,
        folder=str(run.folder),
        after=run.step.job.value.after,
        state=RunState.CANCELLED.value if run.cancelled_by else state,
        error=_reason(run),
        step=status and status.step,
        steps=run.steps,
        loss=status and status.loss,
        eval_loss=evaluations[max(evaluations)] if evaluations else None,
        seconds=found and found.seconds,
    )


def _reason(run: StepRun) -> str | None:
    if run.cancelled_by:
        return f"{run.cancelled_by} did not finish"
    return str(run.error) if run.error else None
