"""Drives a run in this process, from its first attempt to its end."""

import errno
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.controller.controller import RunController
from launcher.controller.supervisor import RunEnded
from launcher.core.errors import HostError, InterruptError, JobError
from launcher.core.events import DisplayOffEvent
from launcher.core.output import report_failures
from launcher.core.printable import plain
from launcher.core.results import GangResult
from launcher.core.signals import Interrupts, ending_on_signals, refusing_suspension
from launcher.core.states import RunState
from launcher.executors.await_runs import CancelledError, wait_for_runs
from launcher.gang import program_archive
from launcher.notify.notifier import END_TIMEOUT_S, RunNotifier
from launcher.planning import budget
from launcher.planning.spec import LaunchSpec
from launcher.runs import live, summary
from launcher.runs.directory import RunDir
from launcher.runs.folder import resume_command
from launcher.runs.history import LastCheckpoint
from launcher.runs.state_file import Position
from launcher.ui.progress import RunDisplay, describe_stop, print_summary

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def drive(spec: LaunchSpec, run: RunDir, saved: LastCheckpoint | None, console: Console) -> None:
    """Runs attempts until the run ends, then records and prints the end, and notifies it.

    `saved` is the checkpoint to resume from.

    Raises JobError, HostError or InterruptError, with the run's directory, unless the run finishes.
    """
    notifier = RunNotifier.of(spec)
    if notifier is None:
        _drive(spec, run, saved, console)
        return
    run.observe(notifier.on_event)
    try:
        _drive(spec, run, saved, console)
    finally:
        _close(notifier, console)


def _close(notifier: RunNotifier, console: Console) -> None:
    """Sends the last notices, and warns of those that were not delivered."""
    waiting = Text(f"sending notifications, {END_TIMEOUT_S:.0f} s at most (Ctrl-C ends this)")
    failures = notifier.close(lambda: console.print(waiting, soft_wrap=True))
    errors = Console(stderr=True, quiet=console.quiet)
    for failure in failures:
        errors.print(Text(plain(f"warning: notify: {failure}"), style="yellow"), soft_wrap=True)


def _drive(spec: LaunchSpec, run: RunDir, saved: LastCheckpoint | None, console: Console) -> None:
    display = RunDisplay(console, spec.within_limit, saved)
    report_failures(_recorder(run))
    errors = Console(stderr=True, quiet=console.quiet)
    for warning in spec.plan.warnings:
        errors.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    began = time.monotonic()
    with ending_on_signals() as interrupts, refusing_suspension():
        try:
            with display:
                spec = _after_other_runs(spec, run, display)
                controller = RunController(spec, run, display, interrupts)
                over = controller.run()
        except KeyboardInterrupt:
            raise _stopped(spec, run, display, interrupts) from None
        except CancelledError as error:
            run.set_state(RunState.CANCELLED, reason=str(error).removeprefix("cancelled: "))
            error.run_dir, error.hint = run.folder, f"Try again: {resume_command(run.folder)}"
            raise
        except (HostError, JobError) as error:
            run.set_state(RunState.FAILED, _position(display), reason=str(error))
            error.run_dir, error.hint = run.folder, _next_action(run, display)
            raise
    if over.state is RunState.STOPPED:
        cut_off = controller.outcome.cut_off if controller.outcome else ""
        raise _stopped(spec, run, display, interrupts, cut_off)
    if over.state is RunState.OVER_BUDGET:
        run.set_state(RunState.OVER_BUDGET, _position(display), reason=over.reason)
        raise _over_budget(spec, run, display, over.reason)
    if over.state is RunState.FAILED:
        run.set_state(RunState.FAILED, _position(display), reason=over.reason)
        raise _failed(run, display, over, controller.outcome)
    _finish(console, spec, run, display, time.monotonic() - began)


def _after_other_runs(spec: LaunchSpec, run: RunDir, display: RunDisplay) -> LaunchSpec:
    """Returns the launch once the runs in the job's `after` have finished.

    Records what it waits for, and then the job without `after`: a resumed run does not wait again.
    Raises CancelledError.
    """
    if not spec.job.after:
        return spec

    def on_status(text: str) -> None:
        run.set_state(RunState.WAITING_FOR_RUNS, reason=text)
        display.status(text)

    ready = wait_for_runs(spec, on_status)
    run.begin(ready.within_limit)
    return ready


@contextmanager
def reporting_disk_errors(folder: Path) -> Iterator[None]:
    """Raises JobError for the error of a disk that cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise JobError(
            f"{folder} cannot be written: {error.strerror}; everything has ended",
            hint=f"Make room, then continue: {resume_command(folder)}",
        ) from error


def _recorder(run: RunDir) -> Callable[[str], None]:
    """Returns a function that records the first error of the output in events.jsonl."""
    recorded = threading.Lock()

    def record(failure: str) -> None:
        if recorded.acquire(blocking=False):
            event = DisplayOffEvent(time=time.time(), reason=failure)
            with suppress(OSError, ValueError):  # a full disk stops the run itself, or it is over
                run.add_event(event)

    return record


def _finish(
    console: Console, spec: LaunchSpec, run: RunDir, display: RunDisplay, elapsed_s: float
) -> None:
    """Records the end, removes what a resumed run would need, prints the summary and goodput."""
    last = _position(display)
    run.set_state(RunState.FINISHED, replace(last, step=spec.steps or last.step))
    program_archive.remove(run.folder)
    print_summary(console, spec, display, elapsed_s)
    goodput = summary.read(run.folder).goodput(None)
    console.print(Text(str(goodput), style="dim"), soft_wrap=True)


def _failed(
    run: RunDir, display: RunDisplay, over: RunEnded, outcome: GangResult | None
) -> JobError:
    """Returns the error of a run that failed, with the last lines of the first host that failed."""
    return JobError(
        f"{over.reason}; all other hosts were ended. Logs: {run.folder}/logs",
        details=outcome.tail if outcome else (),
        hint="\n".join(filter(None, [over.help, _next_action(run, display)])),
        run_dir=run.folder,
    )


def _over_budget(spec: LaunchSpec, run: RunDir, display: RunDisplay, reason: str) -> InterruptError:
    """Returns the error of a run that has used up its budget."""
    assert spec.job.budget
    more = budget.raised(spec.job.budget, live.read_usage(run.folder, is_alive=False))
    return InterruptError(
        f"{reason}; everything has ended. Logs: {run.folder}/logs",
        hint=f"{describe_stop(spec, display)} {more}",
        run_dir=run.folder,
    )


def _stopped(
    spec: LaunchSpec, run: RunDir, display: RunDisplay, interrupts: Interrupts, cut_off: str = ""
) -> InterruptError:
    """Records that a signal ended the run early, and returns the error that reports it.

    `launch stop` sends SIGTERM.
    """
    on_request = interrupts.signal == signal.SIGTERM
    state = RunState.STOPPED if on_request else RunState.INTERRUPTED
    run.set_state(state, _position(display))
    how = "stopped on request" if on_request else "interrupted"
    return InterruptError(
        f"{how}; everything has ended. Logs: {run.folder}/logs",
        details=[f"{cut_off}, before it had stopped in order"] if cut_off else (),
        hint=describe_stop(spec, display),
        run_dir=run.folder,
    )


def _next_action(run: RunDir, display: RunDisplay) -> str | None:
    if display.checkpoint is None:
        return None
    return f"Continue from step {display.checkpoint.step}: {resume_command(run.folder)}"


def _position(display: RunDisplay) -> Position:
    """Returns the last step and checkpoint of the run, for state.json."""
    last, checkpoint = display.last_step, display.checkpoint
    return Position(last and last.step, checkpoint and checkpoint.step)
