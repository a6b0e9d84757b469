"""`launch run`, in order: check, create the run's folder, get hosts, run, report the end."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.cluster.schema import Attach
from launcher.commands import status
from launcher.commands.compile import DoesNotFitError, refuse_unless_it_fits
from launcher.controller.controller import RunController
from launcher.core.errors import HostError
from launcher.core.exit_codes import BAD_USAGE, INTERRUPTED, JOB_FAILED, NO_CLUSTER, OK, fail
from launcher.core.output import report_failures, unfailing_output
from launcher.core.results import GangResult
from launcher.core.signals import Interrupts, ending_on_signals, refusing_suspension
from launcher.executors import new_secrets
from launcher.executors.local import detach
from launcher.executors.options import OutputOptions
from launcher.executors.remote import remote_cluster, resume_remotely, run_remotely, still_there
from launcher.executors.resume_point import Resumed, cluster_words, plan_resume
from launcher.executors.slurm import hand_over, hand_over_new
from launcher.gang.gang import GangError
from launcher.planning import job_secrets
from launcher.planning.spec import LaunchSpec
from launcher.providers.ray_jobs import run_handle as jobs
from launcher.providers.registry import provider_for
from launcher.runs import storage, summary
from launcher.runs.directory import RunDir, RunFolderError, find_run, resume_command
from launcher.ui.progress import LastCheckpoint, RunDisplay, describe_stop, print_summary
from trainer.contract.config.loader import ConfigError

REFUSALS = (ConfigError, RunFolderError, HostError, DoesNotFitError)


@unfailing_output()
def run_job(launch: LaunchSpec, *, fresh: bool, shown: OutputOptions, compiled: bool) -> int:
    """Runs a job, here or in a detached process; returns the exit code of `launch`.

    When standard output is for JSON, it receives only the run's status, at the end.
    `compiled`: on real TPUs, the compiler first checks whether the step fits.
    """
    console = shown.console
    try:
        if fresh:
            launch = storage.apart_from_earlier(launch)
        _refuse(launch)
        if compiled:
            _check_that_it_fits(launch)
        if launch.is_remote:
            return run_remotely(launch, fresh=fresh, shown=shown)
        if launch.is_queued:
            code = hand_over_new(launch, fresh=fresh, shown=shown)
            return _end(launch.run_dir, code, shown.as_json)
        with RunDir.create(launch, fresh=fresh) as run:
            code = _go(launch, run, None, console, shown.detached)
    except REFUSALS as error:
        return _tell_refusal(error)
    except OSError as error:
        return _tell_disk(error, launch.run_dir)
    return _end(launch.run_dir, code, shown.as_json)


@unfailing_output()
def resume_run(
    name: str,
    overrides: Sequence[str],
    runs: Path,
    *,
    cluster: str | None,
    simulate: bool,
    simulate_hosts: int | None,
    shown: OutputOptions,
    compiled: bool,
) -> int:
    """Resumes a run, here or in a detached process; returns the exit code of `launch`.

    `shown` and `compiled` are those of `run_job`.
    """
    console = shown.console
    try:
        folder = find_run(name, runs)
        if there := still_there(folder):
            raise RunFolderError(f"{folder}: this run is running now, on {there.head_name}")
        with RunDir.open(folder) as run:
            words = cluster_words(run.cluster_ref, cluster, simulate, simulate_hosts)
            os.chdir(run.launched_in)
            if remote := remote_cluster(words):
                return resume_remotely(run.folder, overrides, remote, words, shown)
            resumed = plan_resume(run, overrides, words)
            new_secrets.confirm(resumed.launch.job, folder, overrides)
            if compiled and not resumed.is_complete:
                _check_that_it_fits(resumed.launch)
            if resumed.launch.is_queued and not resumed.is_complete:
                _refuse(resumed.launch)
                _tell_resumed(resumed, console)
                code = hand_over(run, resumed.launch, overrides, shown)
            else:
                code = _resume(resumed, run, console, shown.detached)
    except REFUSALS as error:
        return _tell_refusal(error)
    except OSError as error:
        return _tell_disk(error, folder)
    return _end(run.folder, code, shown.as_json)


def _refuse(launch: LaunchSpec) -> None:
    """Raises one of REFUSALS for problems that are known before anything is created."""
    problems = [launch.storage_problem] if launch.storage_problem else []
    provider = launch.cluster.provider
    by_http = provider if launch.is_remote and isinstance(provider, Attach) else None
    if not by_http:  # other users can read a submission: the cluster looks up secrets
        problems += job_secrets.missing(launch.job)
    if problems:
        raise ConfigError(problems)
    if by_http:
        jobs.check(by_http)
    elif not launch.is_remote:
        provider_for(launch.cluster, launch.plan.world.simulated).check(launch)


def _check_that_it_fits(launch: LaunchSpec) -> None:
    """Raises DoesNotFitError, or SystemExit when a signal interrupts the check."""
    errors = Console(stderr=True)
    try:
        with ending_on_signals():
            refuse_unless_it_fits(launch, errors)
    except KeyboardInterrupt:
        raise SystemExit(fail(errors, "interrupted; nothing was started", INTERRUPTED)) from None


def _resume(resumed: Resumed, run: RunDir, console: Console, detached: bool) -> int:
    if resumed.is_complete:
        return _tell_complete(resumed, console)
    _refuse(resumed.launch)
    run.begin(resumed.launch)
    if resumed.launch.attempt > 1:
        _tell_resumed(resumed, console)
    newest = resumed.newest
    saved = LastCheckpoint(newest.step, newest.time) if newest else None
    return _go(resumed.launch, run, saved, console, detached)


def _go(
    launch: LaunchSpec, run: RunDir, saved: LastCheckpoint | None, console: Console, detached: bool
) -> int:
    """Runs the launch here, or in a detached process that ends with the run."""
    if not detached:
        return _run(launch, run, saved, console)
    if not detach(run, console):
        return OK
    raise SystemExit(_run(launch, run, saved, Console()))


def _run(launch: LaunchSpec, run: RunDir, saved: LastCheckpoint | None, console: Console) -> int:
    """Runs the launch, then records and prints its end; `saved` is the checkpoint to resume."""
    errors = Console(stderr=True)
    display = RunDisplay(console, launch, saved)
    report_failures(_recorder(run))
    for warning in launch.plan.warnings:
        errors.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    began = time.monotonic()
    with ending_on_signals() as interrupts, refusing_suspension():
        attempts = RunController(launch, run, display, interrupts)
        try:
            with display:
                over = attempts.run()
        except KeyboardInterrupt:
            return _tell_stop(errors, launch, run, display, interrupts)
        except HostError as error:
            run.set_state("failed", reason=str(error), **_position(display))
            return fail(errors, _with_way_on(str(error), run, display), NO_CLUSTER)
        except GangError as error:
            run.set_state("failed", reason=str(error), **_position(display))
            return fail(errors, _with_way_on(str(error), run, display), JOB_FAILED)
    if over.state == "stopped":
        cut_off = attempts.outcome.cut_off if attempts.outcome else ""
        return _tell_stop(errors, launch, run, display, interrupts, cut_off)
    if over.state == "failed":
        run.set_state("failed", reason=over.reason, **_position(display))
        return _tell_failure(errors, run, display, over.reason, attempts.outcome)
    return _tell_finished(console, launch, run, display, time.monotonic() - began)


def _recorder(run: RunDir) -> Callable[[str], None]:
    """Returns a function that records the first error of the output in events.jsonl."""
    recorded = threading.Lock()

    def record(failure: str) -> None:
        if recorded.acquire(blocking=False):
            event = {"event": "display_off", "time": time.time(), "reason": failure}
            with suppress(OSError, ValueError):  # a full disk stops the run itself, or it is over
                run.add_event(event)

    return record


def _tell_resumed(resumed: Resumed, console: Console) -> None:
    launch, newest = resumed.launch, resumed.newest
    where = f" after step {newest.step}" if newest else ""
    console.print(f"{launch.job.name} goes on{where}: attempt {launch.attempt}", highlight=False)
    for note in resumed.notes:
        console.print(Text(note), soft_wrap=True)


def _tell_complete(resumed: Resumed, console: Console) -> int:
    launch = resumed.launch
    message = f"{launch.job.name} is complete"
    if launch.steps:
        done = max(launch.steps, resumed.newest.step if resumed.newest else 0)
        more = f"{resume_command(launch.run_dir)} steps={2 * launch.steps}"
        message += f": {done} steps are done. To train on: {more}"
    console.print(Text(message), soft_wrap=True)
    return OK


def _tell_finished(
    console: Console, launch: LaunchSpec, run: RunDir, display: RunDisplay, elapsed_s: float
) -> int:
    """Records the end; prints the summary and where the time went."""
    done = {"step": launch.steps} if launch.steps else {}
    run.set_state("finished", **{**_position(display), **done})
    print_summary(console, launch, display, elapsed_s)
    spent = summary.read(run.folder).goodput(None)
    console.print(Text(str(spent), style="dim"), soft_wrap=True)
    return OK


def _tell_failure(
    errors: Console, run: RunDir, display: RunDisplay, reason: str, outcome: GangResult | None
) -> int:
    """Prints the last lines of the first host that failed, and finally what ended it."""
    for line in outcome.tail if outcome else ():
        errors.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    message = f"{reason}; all other hosts were ended. Logs: {run.folder}/logs"
    return fail(errors, _with_way_on(message, run, display), JOB_FAILED)


def _with_way_on(message: str, run: RunDir, display: RunDisplay) -> str:
    if display.checkpoint is None:
        return message
    return f"{message}. Continue from step {display.checkpoint.step}: {resume_command(run.folder)}"


def _tell_stop(
    errors: Console,
    launch: LaunchSpec,
    run: RunDir,
    display: RunDisplay,
    interrupts: Interrupts,
    cut_off: str = "",
) -> int:
    """Records and prints that a signal ended the run early; `launch stop` sends SIGTERM."""
    on_request = interrupts.signal == signal.SIGTERM
    run.set_state("stopped" if on_request else "interrupted", **_position(display))
    if cut_off:
        errors.print(
            Text(f"{cut_off}, before it had stopped in order", style="yellow"), soft_wrap=True
        )
    how = "stopped on request" if on_request else "interrupted"
    fail(errors, f"{how}; everything is ended. Logs: {run.folder}/logs", INTERRUPTED)
    return fail(errors, describe_stop(launch, display), INTERRUPTED)


def _end(folder: Path, code: int, as_json: bool) -> int:
    """Prints the status as JSON if requested; called after the run's lock is released."""
    if as_json:
        print(status.as_json(status.read(folder)))
    return code


def _position(display: RunDisplay) -> dict[str, int | None]:
    """Returns the last step and checkpoint of the run, for state.json."""
    checkpoint = display.checkpoint
    return {
        "step": display.last_step.get("step"),
        "checkpoint": checkpoint.step if checkpoint else None,
    }


def _tell_disk(error: OSError, folder: Path) -> int:
    """Prints the error of a disk that cannot be written; raises any other error again."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
        raise error
    why = f"{folder} cannot be written: {error.strerror}; everything is ended"
    return fail(Console(stderr=True), f"{why}. Then: {resume_command(folder)}", JOB_FAILED)


def _tell_refusal(error: Exception) -> int:
    codes = ((HostError, NO_CLUSTER), (DoesNotFitError, JOB_FAILED))
    code = next((code for kind, code in codes if isinstance(error, kind)), BAD_USAGE)
    return fail(Console(stderr=True), str(error), code)
