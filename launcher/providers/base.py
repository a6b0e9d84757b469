"""What every provider does: checks that it can give hosts, describes them, and gives them."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from launcher.core.events import Listener
from launcher.planning.spec import LaunchSpec
from launcher.providers.ray.host_cluster import HostCluster


class HostProvider(Protocol):
    """Gives hosts to this process, as nodes of a Ray cluster.

    One object serves one cluster file; its settings are the file's `provider` section.
    """

    def check(self, spec: LaunchSpec, *, later: bool = False) -> None:
        """Raises HostError for problems that are known before anything is created.

        Raises ConfigError when the job itself cannot run on these hosts. `later`: whether the job
        starts after other programs on these hosts have ended.
        """

    def describe(self, spec: LaunchSpec) -> str:
        """Returns what is created to get the hosts, as text for `--dry-run`.

        Returns "" when the plan of the run shows everything.
        """
        return ""

    def host_environment(self) -> dict[str, str] | None:
        """Returns the environment of programs when all hosts are this machine, in its network.

        Returns None for all other hosts.
        """
        return None

    def standby_pool(self, spec: LaunchSpec) -> Path | None:
        """Returns the socket of the standby processes that wait on the hosts, if any do.

        See `launcher.host.standby_pool`.
        """
        return None

    def allocate(self, spec: LaunchSpec, listener: Listener) -> AbstractContextManager[HostCluster]:
        """Returns a context manager that gets the hosts on entry and releases them on exit.

        Both raise HostError: the entry names the missing hosts, the exit what is left.
        """
        ...
