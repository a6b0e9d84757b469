"""Runs on a Ray cluster that is reached only by HTTP, as a Ray job that executes `launch`."""

from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.cluster.schema import Attach
from launcher.core.errors import HostError, UnconfirmedError
from launcher.core.exit_codes import INTERRUPTED, OK
from launcher.executors.options import LaunchOptions
from launcher.executors.ssh import RemoteExecutor, RemoteSubmission, RunRequest
from launcher.gang.preflight import Seen
from launcher.planning.spec import LaunchSpec
from launcher.providers.ray.code_bundle import pack
from launcher.providers.ray_jobs import run_handle as jobs
from launcher.providers.ray_jobs.run_handle import Following, RayJob
from trainer.contract.config.job import BaseJob


class RayJobsExecutor(RemoteExecutor):
    """Submits runs through the Jobs API of a Ray cluster."""

    def __init__(self, settings: Attach) -> None:
        self._settings = settings

    def check(self, spec: LaunchSpec, *, later: bool = False) -> None:
        super().check(spec, later=later)
        jobs.check(self._settings)

    def missing_secrets(self, job: BaseJob) -> list[str]:
        """Returns nothing: others can read a submission, so the cluster looks up the secrets."""
        del job
        return []

    def _check_secrets(self, job: BaseJob, folder: Path, options: LaunchOptions) -> None:
        """Does nothing, because no secret is sent."""

    def inspect_hosts(
        self, spec: LaunchSpec, on_status: Callable[[str], None]
    ) -> Mapping[int, Seen]:
        raise HostError(
            "`launch doctor` cannot inspect hosts behind a Jobs API",
            hint="A launch inspects them before its program starts. To inspect them alone, run "
            "`launch doctor` on a node of that cluster, with address: auto",
        )

    def _start(self, submission: RemoteSubmission, begin: RunRequest) -> int:
        """Sends the code, runs the job, and copies the run's folder here."""
        folder, code = submission.folder, pack(Path.cwd())
        run = RayJob.of(folder, self._settings, code, submission.cluster_ref)
        submission.print(f"sending the code to {run.head_name}")
        run.send(code)
        _begin(run, submission, begin)
        submission.print(f"{run.name} is the job {run.submission_id}")
        if submission.options.detach:
            submission.print_hints(run)
            return OK
        following = run.following()
        stopped = _follow(following, run, submission)
        submission.is_there = False
        submission.has_begun = following.has_folder
        if following.has_folder:
            following.unpack(folder)
            run.localize(folder)
        return INTERRUPTED if stopped else following.exit_code


def _begin(run: RayJob, submission: RemoteSubmission, begin: RunRequest) -> None:
    """Submits the job. Raises HostError.

    The run counts as remote, unless the cluster rejects the job.
    """
    order = submission.run_order(begin, run.runs, secrets={})
    submission.has_begun = submission.is_there = True
    try:
        run.begin(order, submission.folder)
    except UnconfirmedError:
        raise
    except HostError:
        submission.has_begun = submission.is_there = False
        raise
    finally:
        if submission.has_begun:
            submission.record(begin)


def _follow(following: Following, run: RayJob, submission: RemoteSubmission) -> bool:
    """Displays the job until it ends. Returns whether Ctrl-C stopped it."""
    try:
        following.until_over(submission.print)
        return False
    except KeyboardInterrupt:
        submission.print("stopping the job, with a checkpoint; a second Ctrl-C detaches")
        run.stop()
        following.until_over(submission.print)
        return True
