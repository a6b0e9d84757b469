"""Runs that this machine drives: in this process, or in a background process with `--detach`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from launcher.cluster.schema import ClusterRef
from launcher.core.events import Listener
from launcher.core.formatting import pluralize
from launcher.executors import driver
from launcher.executors.base import Executor
from launcher.executors.drive import drive
from launcher.executors.driver import DriverOrder
from launcher.executors.follow import print_follow_hints
from launcher.executors.local_run import LocalRunHandle
from launcher.executors.options import LaunchOptions
from launcher.executors.resume_point import prepare_resume
from launcher.gang.host_pool import HostPool
from launcher.gang.preflight import Seen
from launcher.planning.spec import LaunchSpec
from launcher.providers.registry import provider_for
from launcher.runs.directory import RunDir


class LocalExecutor(Executor):
    """Drives runs in a process of this machine, on the hosts that a provider gives to it."""

    def check(self, spec: LaunchSpec, *, later: bool = False) -> None:
        super().check(spec, later=later)
        provider_for(spec.cluster, spec.plan.world.simulated).check(spec, later=later)

    def await_runs(self, spec: LaunchSpec, options: LaunchOptions) -> LaunchSpec:
        """Returns the launch as it is: the process that drives the run waits, see `drive`."""
        del options
        return spec

    def describe(self, spec: LaunchSpec) -> str:
        return provider_for(spec.cluster, spec.plan.world.simulated).describe(spec)

    def submit(self, spec: LaunchSpec, options: LaunchOptions) -> LocalRunHandle:
        if options.detach:
            return _detach(DriverOrder(spec, is_new=True, fresh=options.fresh), options)
        with RunDir.create(spec, fresh=options.fresh) as run:
            drive(spec, run, None, options.console)
        return LocalRunHandle(spec.run_dir)

    def resume(
        self, run: RunDir, cluster_ref: ClusterRef, options: LaunchOptions
    ) -> LocalRunHandle:
        point = prepare_resume(run, cluster_ref, options)
        if point.is_complete:
            return LocalRunHandle(run.folder)
        launch = replace(point.launch, host_limit=options.host_limit)
        self.check(launch.within_limit)
        if point.launch.attempt > 1:
            point.print_start(options.console)
        if options.detach:
            before = run.recorded
            run.close()  # the driver takes the lock
            order = DriverOrder(launch, is_new=False, before=before, saved=point.saved)
            return _detach(order, options)
        run.begin(launch.within_limit)
        drive(launch, run, point.saved, options.console)
        return LocalRunHandle(run.folder)

    def inspect_hosts(
        self, spec: LaunchSpec, on_status: Callable[[str], None]
    ) -> Mapping[int, Seen]:
        with HostPool(_StatusListener(on_status), spec) as hosts:
            gang = hosts.gang(spec)
            on_status(f"inspecting {pluralize(gang.size, 'host')}")
            return gang.run_preflight(spec.plan.world.platform)


class _StatusListener(Listener):
    """Passes status texts of the launcher to a function."""

    def __init__(self, on_status: Callable[[str], None]) -> None:
        self._on_status = on_status

    def on_status(self, text: str) -> None:
        self._on_status(text)


def _detach(order: DriverOrder, options: LaunchOptions) -> LocalRunHandle:
    folder = order.spec.run_dir
    driver.start(order)
    where = f"{folder.name} runs in the background. Its output: {folder}/logs/launch.log"
    print_follow_hints(options.console, folder, where)
    return LocalRunHandle(folder)
