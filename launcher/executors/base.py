"""The interface of executors. An executor decides which process drives a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial

from launcher.cluster.schema import ClusterRef
from launcher.core.errors import InterruptError
from launcher.core.signals import ending_on_signals
from launcher.executors.await_runs import wait_for_runs
from launcher.executors.handle import RunHandle
from launcher.executors.options import LaunchOptions
from launcher.gang.preflight import Seen
from launcher.planning import job_secrets
from launcher.planning.spec import LaunchSpec
from launcher.runs.directory import RunDir
from trainer.contract.config.job import BaseJob
from trainer.contract.config.loader import ConfigError


class Executor(ABC):
    """Decides which process drives a run: this one, a background one, or one of the hosts."""

    def check(self, spec: LaunchSpec, *, later: bool = False) -> None:
        """Checks what can be known before anything is created.

        `later`: whether the run starts after other programs on the hosts have ended.

        Raises ConfigError for a job that these hosts cannot run, HostError for hosts that cannot be
        reached.
        """
        if problems := self.problems(spec):
            raise ConfigError(problems)

    def problems(self, spec: LaunchSpec) -> list[str]:
        """Returns what is wrong with a job for these hosts, whatever their current state."""
        storage = [spec.storage_problem] if spec.storage_problem else []
        return storage + self.missing_secrets(spec.job)

    def missing_secrets(self, job: BaseJob) -> list[str]:
        """Returns a problem for each of the job's secrets that this process does not have."""
        return job_secrets.missing(job)

    def describe(self, spec: LaunchSpec) -> str:
        """Returns what is created to get the hosts, as text for `--dry-run`; "" for nothing."""
        del spec
        return ""

    def await_runs(self, spec: LaunchSpec, options: LaunchOptions) -> LaunchSpec:
        """Waits for the runs in the job's `after`, which the hosts of a remote run do not see.

        Raises CancelledError, and InterruptError after a signal: nothing was started.
        """
        if not spec.job.after:
            return spec
        with ending_on_signals():
            try:
                return wait_for_runs(spec, partial(options.console.print, soft_wrap=True))
            except KeyboardInterrupt:
                raise InterruptError("interrupted; nothing was started") from None

    @abstractmethod
    def submit(self, spec: LaunchSpec, options: LaunchOptions) -> RunHandle:
        """Starts a new run and, without `options.detach`, shows it until its end.

        Raises RunFolderError when the run's directory cannot be created, HostError when the run
        cannot start, and the run's own error when it does not finish.
        """

    @abstractmethod
    def resume(self, run: RunDir, cluster_ref: ClusterRef, options: LaunchOptions) -> RunHandle:
        """Resumes a run whose lock this process holds; see `submit`."""

    @abstractmethod
    def inspect_hosts(
        self, spec: LaunchSpec, on_status: Callable[[str], None]
    ) -> Mapping[int, Seen]:
        """Inspects every host as a run would, and returns the reports by process.

        Raises HostError when hosts cannot be inspected.
        """
