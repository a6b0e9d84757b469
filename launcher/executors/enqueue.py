"""`launch --queue` and `launch resume --queue`: runs that wait until their cluster is free."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.cluster.schema import Cluster, ClusterRef
from launcher.core.errors import UsageError
from launcher.executors.base import Executor
from launcher.executors.follow import print_follow_hints
from launcher.executors.handle import RunHandle
from launcher.executors.local_run import LocalRunHandle
from launcher.executors.options import LaunchOptions
from launcher.executors.resume_point import Resumed, plan_resume, prepare_resume
from launcher.planning import budget, job_secrets
from launcher.planning.spec import LaunchSpec
from launcher.queue.folder import Queue, queue_name
from launcher.runs.directory import RunDir
from launcher.ui.plan_view import describe_world


def enqueue(executor: Executor, spec: LaunchSpec, options: LaunchOptions) -> RunHandle:
    """Adds a new run to the queue of its cluster, or submits it where the cluster has its own.

    Raises RunFolderError when the run's directory cannot be created, UsageError for a cluster
    without a queue, InternalError when the queue's worker does not start.
    """
    has_own_queue = _has_own_queue(spec.cluster, spec.cluster_ref, options.console)
    _print_expectations(spec, options.console)
    if has_own_queue:
        return executor.submit(spec, replace(options, detach=True))
    queue = add_run(spec, fresh=options.fresh)
    return _serve(queue, spec, options.console)


def enqueue_again(
    executor: Executor,
    run: RunDir,
    cluster: Cluster,
    cluster_ref: ClusterRef,
    options: LaunchOptions,
) -> RunHandle:
    """Adds an earlier run, whose lock this process holds, to a queue; see `enqueue`.

    Raises the errors of `prepare_resume`, too.
    """
    if _has_own_queue(cluster, cluster_ref, options.console):
        _print_remaining(plan_resume(run, options.overrides, cluster_ref), options.console)
        return executor.resume(run, cluster_ref, replace(options, detach=True))
    point = prepare_resume(run, cluster_ref, options)
    if point.is_complete:
        return LocalRunHandle(run.folder)
    executor.check(point.launch, later=True)
    _print_remaining(point, options.console)
    queue = _add(run, point.launch)
    return _serve(queue, point.launch, options.console)


def _has_own_queue(cluster: Cluster, cluster_ref: ClusterRef, console: Console) -> bool:
    """Returns whether another queue than Slipway's serves a cluster, and prints which one.

    Raises UsageError for a cluster that no queue of this machine can serve.
    """
    if cluster_ref.simulated:
        return False
    if name := cluster.provider.own_queue:
        console.print(Text(f"{name} has its own queue: the run is submitted to it"), soft_wrap=True)
        return True
    if cluster.is_elsewhere:
        raise UsageError(
            f"--queue: {cluster_ref.name}: a host of this cluster drives its runs, and a queue is "
            "on the machine that drives them. Start the run without --queue"
        )
    return False


def _print_remaining(point: Resumed, console: Console) -> None:
    """Prints what is expected of a run that is resumed, if anything is left to do."""
    if not point.is_complete:
        _print_expectations(point.launch, console, point.newest.step if point.newest else 0)


def _print_expectations(spec: LaunchSpec, console: Console, done: int = 0) -> None:
    """Prints the hosts and warnings of a plan, and the least that the run takes and costs.

    `done`: steps that an earlier attempt has saved.
    """
    console.print(Text(f"{spec.job.name} on {describe_world(spec)}"), soft_wrap=True)
    errors = Console(stderr=True, quiet=console.quiet)
    for warning in spec.plan.warnings:
        errors.print(Text(f"warning: {warning}", style="yellow"), soft_wrap=True)
    if forecast := budget.describe_forecast(spec, done):
        console.print(Text(forecast), soft_wrap=True)


def add_run(spec: LaunchSpec, *, fresh: bool = False) -> Queue:
    """Creates the directory of a run, and adds the run to the queue of its cluster.

    Raises RunFolderError and QueueError.
    """
    return _add(RunDir.make(spec, fresh=fresh), spec)


def _add(run: RunDir, spec: LaunchSpec) -> Queue:
    """Records that a run waits, releases its lock, and adds it to the queue of its cluster."""
    queue = Queue.create(queue_name(spec.cluster_ref, Path.cwd()))
    with run:
        run.wait_in_queue(spec)
    secrets = job_secrets.values(spec.job)
    is_fixed = spec.cluster_ref.simulate_hosts is not None
    sizes = () if is_fixed else spec.sizes
    queue.add(
        run.folder,
        priority=spec.job.priority,
        is_preemptible=spec.job.preemptible,
        grace_s=spec.grace_s,
        sizes=sizes,
        is_elastic=spec.saves and len(sizes) > 1,
        environment={**job_secrets.without_secrets(secrets), **secrets},
    )
    return queue


def _serve(queue: Queue, spec: LaunchSpec, console: Console) -> LocalRunHandle:
    """Starts the worker of a queue, and prints the place of a run that was just added."""
    queue.start_worker()
    place = queue.places().get(spec.run_dir)
    how = f"waits in the queue of {spec.cluster_name}: {place}" if place else "starts now"
    print_follow_hints(console, spec.run_dir, f"{spec.run_dir.name} {how}")
    return LocalRunHandle(spec.run_dir)
