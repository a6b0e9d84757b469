"""The interface of executors. An executor decides which process drives a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from launcher.cluster.schema import ClusterRef
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

    def check(self, spec: LaunchSpec) -> None:
        """Checks what can be known before anything is created.

        Raises ConfigError for a job that these hosts cannot run, HostError for hosts that cannot be
        reached.
        """
        problems = [spec.storage_problem] if spec.storage_problem else []
        problems += self.missing_secrets(spec.job)
        if problems:
            raise ConfigError(problems)

    def missing_secrets(self, job: BaseJob) -> list[str]:
        """Returns a problem for each of the job's secrets that this process does not have."""
        return job_secrets.missing(job)

    def describe(self, spec: LaunchSpec) -> str:
        """Returns what is created to get the hosts, as text for `--dry-run`; "" for nothing."""
        del spec
        return ""

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
