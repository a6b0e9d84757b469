"""`launch run`, `resume`, `attach` and `stop` for a run that is a job in Slurm's queue."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.cluster.schema import Slurm
from launcher.core.errors import HostError, UnconfirmedError
from launcher.core.exit_codes import INTERRUPTED, JOB_FAILED, NO_CLUSTER, OK, fail
from launcher.core.files import read_object
from launcher.core.formatting import pluralize
from launcher.executors.follow import attach_run
from launcher.executors.options import OutputOptions
from launcher.planning import job_secrets
from launcher.planning.spec import LaunchSpec
from launcher.providers.slurm import job_environment
from launcher.providers.slurm.submit import submit
from launcher.runs.directory import POSITION, QUEUED, RunDir, is_alive, run_word
from launcher.runs.host_logs import FOLLOWED_TAIL
from launcher.runs.slurm_job import Queued, SlurmJob
from launcher.runs.status import RunStatus, describe, read_status

LOOK_S, LOOK_AT_QUEUE_S = 0.5, 2.0
ENDING_TIMEOUT_S = 90.0
"""Seconds beyond the program's grace period: Slurm kills a job that does not end by itself."""
SHOWN_LINES = 20


def hand_over_new(launch: LaunchSpec, *, fresh: bool, shown: OutputOptions) -> int:
    """Calls `hand_over` for a new run. If Slurm rejects it, the run's folder is removed."""
    run = RunDir.make(launch, fresh=fresh)
    try:
        job = _submit(run, launch, [])
    except UnconfirmedError as error:
        return _tell_doubt(run, error)
    except HostError:
        shutil.rmtree(run.folder)
        raise
    return _show(run.folder, job, launch, shown)


def hand_over(
    run: RunDir, launch: LaunchSpec, overrides: Sequence[str], shown: OutputOptions
) -> int:
    """Submits a run that no process runs as a Slurm job; returns the exit code of `launch`.

    Raises HostError when Slurm rejects it.
    """
    before = run.state
    try:
        job = _submit(run, launch, overrides)
    except UnconfirmedError as error:
        return _tell_doubt(run, error)
    except HostError:
        with RunDir.open(run.folder) as again:
            again.set_state(before.get("state", "stopped"), **{n: before.get(n) for n in POSITION})
        raise
    return _show(run.folder, job, launch, shown)


def _submit(run: RunDir, launch: LaunchSpec, overrides: Sequence[str]) -> SlurmJob:
    """Releases the run's lock, which the job takes when it starts, and submits the job."""
    settings = launch.cluster.provider
    assert isinstance(settings, Slurm)
    with run:
        run.wait_in_queue(launch)
    secrets = job_secrets.values(launch.job)
    world, grace_s = launch.plan.world, launch.grace_s
    return submit(run.folder, world, settings, grace_s, overrides, secrets)


def _tell_doubt(run: RunDir, error: UnconfirmedError) -> int:
    word = run_word(run.folder)
    ways = f"Ask again: launch status {word}. Do without it: launch stop {word}"
    return fail(Console(stderr=True), f"{error}. {ways}", NO_CLUSTER)


def _show(folder: Path, job: SlurmJob, launch: LaunchSpec, shown: OutputOptions) -> int:
    hosts = pluralize(launch.plan.world.processes, "host")
    _tell(shown.console, f"{folder.name} is Slurm's job {job.job_id}, on {hosts}")
    if shown.detached:
        _tell_where(folder, shown.console)
        return OK
    return follow(folder, job, shown)


def follow(folder: Path, job: SlurmJob, shown: OutputOptions) -> int:
    """Displays a job until it has left the queue for good. Ctrl-C detaches; the job continues."""
    console, said, has_begun = shown.console, "", False
    tail = FOLLOWED_TAIL if _has_begun(folder) else 0
    try:
        while (found := _look(folder, job)) is not None:
            if str(found) != said and found.state == "PENDING":
                said = str(found)
                _tell(console, f"{folder.name} is {said}")
            if _has_begun(folder):
                has_begun = True
                attach_run(folder, aside=shown.as_json, tail=tail)
                tail = 0
                if is_alive(folder):
                    return INTERRUPTED  # the user has detached
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        _tell(console, "let go of the run")
        _tell_where(folder, console)
        return INTERRUPTED
    found = read_status(folder)
    return found.exit_code if has_begun else _tell_end(found, job)


def stop_job(folder: Path, job: SlurmJob, *, now: bool, aside: bool) -> int:
    """Stops a job: with a checkpoint, immediately, or before it has begun. Raises HostError."""
    console, errors = Console(stderr=aside), Console(stderr=True)
    job.model_copy(update={"is_to_end": True}).write(folder)  # a job accepted late ends by itself
    found = job.queue_status()
    in_order = not now and found is not None and found.state == "RUNNING" and is_alive(folder)
    grace_s = read_object(folder / "state.json").get("grace_s") or 0.0
    if in_order:
        _tell(console, f"stopping {folder.name}, with a checkpoint")
        job.ask_to_stop()
    else:
        job.cancel()
    deadline = time.monotonic() + ENDING_TIMEOUT_S + grace_s * in_order
    while is_alive(folder) or job.queue_status() is not None:
        if time.monotonic() > deadline:
            return fail(
                errors, f"Slurm's job {job.job_id or job.name} has not ended yet", JOB_FAILED
            )
        time.sleep(LOOK_S)
    job_environment.forget(folder)
    if read_status(folder).state in (QUEUED, "died"):
        with RunDir.open(folder) as run:
            run.set_state("stopped", **{name: run.state.get(name) for name in POSITION})
    _tell(console, describe(read_status(folder)))
    return OK


def _has_begun(folder: Path) -> bool:
    return is_alive(folder) and read_object(folder / "state.json").get("state") != QUEUED


def _look(folder: Path, job: SlurmJob) -> Queued | None:
    """Queries Slurm until it answers: a controller that is silent for a while ends nothing."""
    while True:
        try:
            return job.queue_status()
        except HostError:
            if not is_alive(folder):
                time.sleep(LOOK_AT_QUEUE_S)


def _tell_end(found: RunStatus, job: SlurmJob) -> int:
    """Reports a job that was over before it could be displayed; returns the exit code."""
    errors, log = Console(stderr=True), found.folder / "logs" / "slurm.log"
    noted = SlurmJob.read(found.folder)
    if noted is not None and noted.is_to_end:
        return fail(errors, f"{found.name} was taken out of the queue", INTERRUPTED)
    if found.state != "died":
        return fail(errors, describe(found), found.exit_code) if found.exit_code else OK
    for line in (log.read_text() if log.exists() else "").splitlines()[-SHOWN_LINES:]:
        errors.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    return fail(errors, f"Slurm's job {job.job_id} has ended before the run began", NO_CLUSTER)


def _tell(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)


def _tell_where(folder: Path, console: Console) -> None:
    word = run_word(folder)
    _tell(console, f"  follow it                     launch attach {word}")
    _tell(console, f"  see how it stands             launch status {word}")
    _tell(console, f"  stop it, with a checkpoint    launch stop {word}")
