"""The interface of a run's handle, for all executors."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from launcher.core.events import Listener
from launcher.executors.options import LaunchOptions
from launcher.runs.goodput import Goodput
from launcher.runs.status import RunStatus
from trainer.contract.protocol.events import Event


class RunHandle(ABC):
    """A run, whichever process drives it. Its record is in the run's directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """The run's directory on this machine, or the folder for its copy."""

    @property
    def name(self) -> str:
        return self.folder.name

    @abstractmethod
    def status(self) -> RunStatus:
        """Returns the run's current status. Raises HostError when it cannot be queried."""

    @abstractmethod
    def goodput(self) -> Goodput:
        """Returns how the run's time was spent, until now if it is running.

        Raises HostError when it cannot be queried.
        """

    @abstractmethod
    def events(self) -> Iterator[Event]:
        """Yields the run's events, the past ones first, until the run ends."""

    @abstractmethod
    def logs(self, host: int | None = None) -> Iterator[str]:
        """Yields the output lines of one host or of all hosts, until the run ends.

        Lines of all hosts begin with "host N ".
        """

    @abstractmethod
    def wait(self, listener: Listener | None = None) -> RunStatus:
        """Waits for the end of the run, and returns its last status.

        `listener` receives the run's events.
        """

    @abstractmethod
    def follow(self, options: LaunchOptions) -> RunStatus:
        """Displays the run until its end, and returns its last status.

        Raises the error that `launch run` ends with when the run does not finish, and
        InterruptError after Ctrl-C: the command detaches, and the run continues.
        """

    @abstractmethod
    def stop(self, *, force: bool = False, listener: Listener | None = None) -> None:
        """Stops the run with a checkpoint, and returns once it has ended.

        `force` ends it immediately: steps after the last checkpoint are lost. `listener` receives
        the status while the run stops. A run that has ended is left as it is.

        Raises HostError or JobError when the run does not end.
        """

    @abstractmethod
    def fetch(self) -> Path:
        """Returns the run's directory on this machine, after copying it here if it is elsewhere."""

    def forward(self, verb: str, *args: str, terminal: bool) -> int | None:
        """Runs a command of `launch` where the run is, and returns its exit code.

        Returns None for a run of this machine.
        """
        del verb, args, terminal
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"
