"""Runs as jobs in Slurm's queue. The job's first host drives the run."""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.cluster.schema import ClusterRef, Slurm
from launcher.core.errors import HostError, UnconfirmedError
from launcher.core.formatting import pluralize
from launcher.core.states import RunState
from launcher.executors.base import Executor
from launcher.executors.follow import print_follow_hints
from launcher.executors.inspect_hosts import parse_reports
from launcher.executors.options import LaunchOptions
from launcher.executors.resume_point import prepare_resume
from launcher.executors.slurm_run import SlurmRunHandle
from launcher.gang.preflight import Seen
from launcher.planning import job_secrets
from launcher.planning.spec import LaunchSpec
from launcher.providers.slurm import submit
from launcher.runs.directory import RunDir
from launcher.runs.folder import run_word
from launcher.runs.slurm_job import SlurmJob


class SlurmExecutor(Executor):
    """Submits runs to Slurm's queue."""

    def __init__(self, settings: Slurm) -> None:
        self._settings = settings

    def submit(self, spec: LaunchSpec, options: LaunchOptions) -> SlurmRunHandle:
        """Submits a new run. If Slurm rejects it, the run's directory is removed."""
        run = RunDir.make(spec, fresh=options.fresh)
        try:
            job = self._submit(run, spec, options)
        except UnconfirmedError:
            raise
        except HostError:
            shutil.rmtree(run.folder)
            raise
        return _follow(run.folder, job, spec, options)

    def resume(
        self, run: RunDir, cluster_ref: ClusterRef, options: LaunchOptions
    ) -> SlurmRunHandle:
        point = prepare_resume(run, cluster_ref, options)
        if point.is_complete:
            return SlurmRunHandle(run.folder)
        self.check(point.launch)
        point.print_start(options.console)
        before = run.recorded
        try:
            job = self._submit(run, point.launch, options)
        except UnconfirmedError:
            raise
        except HostError:
            with RunDir.open(run.folder) as again:
                again.set_state(before.state or RunState.STOPPED, before.position)
            raise
        return _follow(run.folder, job, point.launch, options)

    def inspect_hosts(
        self, spec: LaunchSpec, on_status: Callable[[str], None]
    ) -> Mapping[int, Seen]:
        on_status("waiting for hosts in Slurm's queue")
        with tempfile.TemporaryDirectory(prefix=".slipway-doctor-", dir=Path.cwd()) as shared:
            name = spec.cluster_ref.lasting().name
            printed = submit.inspect_hosts(
                Path(shared), name, spec.provisioned_world, self._settings
            )
        return parse_reports(printed)

    def _submit(self, run: RunDir, spec: LaunchSpec, options: LaunchOptions) -> SlurmJob:
        """Releases the run's lock, which the job takes when it starts, and submits the job."""
        with run:
            run.wait_in_queue(spec)
        secrets = job_secrets.values(spec.job)
        world, grace_s = spec.provisioned_world, spec.grace_s
        try:
            return submit.submit(
                run.folder, world, self._settings, grace_s, spec.job.priority, options.overrides,
                secrets,
            )  # fmt: skip
        except UnconfirmedError as error:
            word = run_word(run.folder)
            error.hint = f"Ask again: launch status {word}. Do without the job: launch stop {word}"
            raise


def _follow(
    folder: Path, job: SlurmJob, spec: LaunchSpec, options: LaunchOptions
) -> SlurmRunHandle:
    handle = SlurmRunHandle(folder)
    hosts = pluralize(spec.provisioned_world.hosts, "host")
    where = f"{folder.name} is Slurm's job {job.job_id}, on {hosts}"
    if options.detach:
        print_follow_hints(options.console, folder, where)
    else:
        options.console.print(where, markup=False, highlight=False, soft_wrap=True)
        handle.follow(options)
    return handle
