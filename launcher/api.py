"""The Python API of the launcher: what the commands of `launch` call.

Functions return or raise SlipwayError. Progress goes to standard output, unless `progress=False`.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from launcher.chains.link import link, prepare
from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.core.states import RunState
from launcher.executors.handles import handle_of
from launcher.executors.options import LaunchOptions
from launcher.planning.planner import make_launch
from launcher.runs import storage
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError
from launcher.runs.folder import find_run as find_folder
from launcher.runs.status import RunStatus, take_all
from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.config.job import Job
from trainer.contract.config.loader import Loaded, dump

if TYPE_CHECKING:
    from launcher.executors.handle import RunHandle
    from launcher.planning.spec import LaunchSpec

Overrides = Mapping[str, Any] | Sequence[str]
"""Changes to a job: {"steps": 20, "mesh.tensor": 2}, or ["steps=20", "mesh.tensor=2"]."""


def plan(
    job: Job | CommandJob | Path | str,
    *,
    cluster: str = "local",
    simulate: bool = False,
    simulate_hosts: int | None = None,
    overrides: Overrides = (),
    runs: Path | str = "runs",
) -> "LaunchSpec":
    """Plans a job on a cluster. Starts nothing and writes nothing.

    Args:
      job: a job, or the path of a job file.
      cluster: the name of a cluster, the path of a cluster file, or an accelerator ("v4-64").
      simulate: whether to simulate the hosts on this machine, with CPU devices.
      simulate_hosts: the number of hosts to simulate; implies `simulate`.
      overrides: changes to a job file.
      runs: the folder that holds a directory per run.

    Returns:
      What `run` starts: the plan, and each process's command and environment.

    Raises:
      ConfigError: with every problem of the job, the cluster and their fit.
    """
    cluster_ref = ClusterRef(name=cluster, simulate=simulate, simulate_hosts=simulate_hosts)
    if isinstance(job, Job | CommandJob):
        changed = _changed(job, overrides)
        spec = make_launch(changed, find_cluster(cluster), Path(runs), cluster_ref)
        return link(spec, changed.problem)
    return prepare(Path(job), _as_arguments(overrides), cluster_ref, Path(runs))


def run(
    spec: "LaunchSpec",
    *,
    detach: bool = False,
    queue: bool = False,
    fresh: bool = False,
    assume_yes: bool = False,
    compile_check: bool = True,
    hot: bool = True,
    progress: bool = True,
) -> "RunHandle":
    """Runs a plan, and returns once the run has finished.

    Args:
      spec: what `plan` returned.
      detach: whether to return as soon as the run has started, and keep it running in the
        background.
      queue: whether to return at once, and start the run in the background when its cluster is
        free, by `priority` of the job.
      fresh: whether to move an existing run of this name aside and start from scratch.
      assume_yes: whether to create billable resources without asking for confirmation.
      compile_check: whether to compile the step first, on real TPUs, to see whether it fits.
      hot: whether the hosts load the programs that `launch plan --compile --keep` has kept.
      progress: whether to show progress.

    Raises:
      JobError: when the run fails, or the step does not fit.
      UsageError: when a run of this name exists, or the job lacks a secret or its storage.
      HostError: when hosts cannot be reached or provisioned, or all of them are lost.
      InterruptError: when a signal or Ctrl-C ended the run. No process is left behind, and
        `resume` continues from the last checkpoint.
    """
    return start(
        spec,
        LaunchOptions(
            detach=detach,
            queue=queue,
            fresh=fresh,
            assume_yes=assume_yes,
            compile_check=compile_check,
            hot=hot,
            quiet=not progress,
        ),
    )


def resume(
    run: "RunHandle | Path | str",
    *,
    overrides: Overrides = (),
    cluster: str | None = None,
    simulate: bool = False,
    simulate_hosts: int | None = None,
    detach: bool = False,
    queue: bool = False,
    assume_yes: bool = False,
    compile_check: bool = True,
    hot: bool = True,
    progress: bool = True,
    runs: Path | str = "runs",
) -> "RunHandle":
    """Resumes a run from its last checkpoint, on the same cluster or on another one.

    Args:
      run: a handle, or the name or the directory of a run.
      overrides: changes to the run's job.
      cluster: another cluster than before; None for the same one.
      simulate: as for `plan`; added to the previous options when `cluster` is None.
      simulate_hosts: as for `plan`.
      detach: as for `run`, like the remaining options.
      runs: the folder in which to look for the run's name.

    Raises:
      SlipwayError: as `run`; UsageError when the run is running.
    """
    options = LaunchOptions(
        detach=detach,
        queue=queue,
        assume_yes=assume_yes,
        compile_check=compile_check,
        hot=hot,
        quiet=not progress,
        overrides=_as_arguments(overrides),
    )
    folder = find_folder(str(run), Path(runs)) if isinstance(run, str | Path) else run.folder
    return restart(folder, (cluster, simulate, simulate_hosts), options)


def find_run(name_or_path: Path | str, runs: Path | str = "runs") -> "RunHandle":
    """Returns the handle of a run: by its name, also of another folder, or by its directory.

    A remote run that has ended is first copied here.

    Raises:
      UsageError: for an unknown name, for a name that several runs have, and when the host of a
        remote run does not answer.
    """
    return handle_of(find_folder(str(name_or_path), Path(runs)))


def list_runs(runs: Path | str = "runs") -> list[RunStatus]:
    """Returns the status of all runs in `runs` and of those started elsewhere, newest first."""
    return take_all(Path(runs))


def start(spec: "LaunchSpec", options: LaunchOptions) -> "RunHandle":
    """Starts a run, see `run`."""
    from launcher.executors.compile_check import require_fit
    from launcher.executors.drive import reporting_disk_errors
    from launcher.executors.enqueue import enqueue
    from launcher.executors.registry import executor_for

    spec = replace(spec, hot=options.hot)
    if options.fresh:
        spec = storage.apart_from_earlier(spec)
    executor = executor_for(spec.cluster, simulated=spec.plan.world.simulated)
    executor.check(spec, later=options.queue)
    if options.compile_check:
        require_fit(spec)
    spec = executor.await_runs(spec, options)
    with reporting_disk_errors(spec.run_dir):
        if options.queue:
            return enqueue(executor, spec, options)
        return executor.submit(spec, options)


def restart(
    folder: Path,
    where: tuple[str | None, bool, int | None],
    options: LaunchOptions,
    *,
    from_queue: bool = False,
) -> "RunHandle":
    """Resumes the run in a directory, see `resume`.

    `where`: the cluster, whether it is simulated, and the number of simulated hosts. `from_queue`:
    whether to raise RunFolderError unless the run waits in a queue.
    """
    from launcher.executors.drive import reporting_disk_errors
    from launcher.executors.enqueue import enqueue_again
    from launcher.executors.registry import executor_for
    from launcher.executors.remote_run import locate
    from launcher.executors.resume_point import new_cluster_ref

    if remote := locate(folder):
        raise RunFolderError(f"{folder}: this run is running now, on {remote.head_name}")
    with reporting_disk_errors(folder), RunDir.open(folder) as opened:
        if from_queue and opened.recorded.state is not RunState.QUEUED:
            raise RunFolderError(f"{folder}: this run does not wait in a queue")
        cluster_ref = new_cluster_ref(opened.cluster_ref, *where)
        with chdir(opened.launched_in):
            cluster = find_cluster(cluster_ref.name).value
            executor = executor_for(cluster, simulated=cluster_ref.simulated)
            if options.queue:
                return enqueue_again(executor, opened, cluster, cluster_ref, options)
            return executor.resume(opened, cluster_ref, options)


def _as_arguments(overrides: Overrides) -> list[str]:
    """Returns overrides as KEY=VALUE, with values as JSON, which YAML reads."""
    if isinstance(overrides, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    return list(overrides)


def _changed(job: Job | CommandJob, overrides: Overrides) -> Loaded[Job | CommandJob]:
    """Returns a job with overrides applied, as if it came from a file. Raises ConfigError."""
    if not overrides:
        return Loaded(job, f"job {job.name}", {})
    with TemporaryDirectory(prefix="slipway-job-") as folder:
        path = Path(folder) / f"{job.name}.yaml"
        path.write_text(dump(job), encoding="utf-8")
        return load_job(path, _as_arguments(overrides))
