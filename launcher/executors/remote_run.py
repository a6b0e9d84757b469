"""The handle of a run that a remote host drives."""

from collections.abc import Iterator
from pathlib import Path

from launcher.core.errors import HostError, JobError, error_of
from launcher.core.events import Listener, parse_event
from launcher.core.exit_codes import OK
from launcher.core.files import parse_object, read_object
from launcher.core.wait import wait_until
from launcher.executors.handle import RunHandle
from launcher.executors.options import LaunchOptions
from launcher.providers.ray_jobs.run_handle import RayJob
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.runs.folder import REMOTE, RunFolderError
from launcher.runs.goodput import Goodput
from launcher.runs.live import read_goodput
from launcher.runs.remote import RemoteRunRecord
from launcher.runs.state_file import RecordedState
from launcher.runs.status import PrintedGoodput, PrintedStatus, RunStatus, read_status
from trainer.contract.protocol.events import Event

POLL_INTERVAL_S = 1.0


class RemoteRunHandle(RunHandle):
    """A run that a remote host drives. Commands run there; at the end the run is copied here."""

    def __init__(self, folder: Path, record: RemoteRunRecord) -> None:
        super().__init__(folder)
        self._record = record

    def status(self) -> RunStatus:
        if self._is_here:
            return read_status(self.folder)
        return RunStatus.of_remote(self.folder, self._printed_status())

    def goodput(self) -> Goodput:
        if self._is_here:
            return read_goodput(self.folder, is_alive=False)
        printed = self._printed_status().goodput or PrintedGoodput({})
        return printed.goodput()

    def events(self) -> Iterator[Event]:
        return filter(None, map(parse_event, self._record.lines("events")))

    def logs(self, host: int | None = None) -> Iterator[str]:
        for line in self._record.lines("logs", "-f", "--tail=1000000", "-o", "json"):
            match parse_object(line):
                case {"host": int(number), "line": str(text)} if host is None:
                    yield f"host {number} {text}"
                case {"host": int(number), "line": str(text)} if number == host:
                    yield text

    def wait(self, listener: Listener | None = None) -> RunStatus:
        for event in self.events():
            if listener:
                listener.on_event(event)
        wait_until(self._record.is_over, poll_interval_s=POLL_INTERVAL_S)
        self.fetch()
        return self.status()

    def follow(self, options: LaunchOptions) -> RunStatus:
        args = ["-o", "json"] if options.as_json else []
        code = self._record.launch("attach", *args, terminal=options.console.is_terminal)
        if code != OK:
            raise error_of(code, f"{self.name}: see above", run_dir=self.folder)
        return self.status()

    def stop(self, *, force: bool = False, listener: Listener | None = None) -> None:
        for line in self._record.lines("stop", *["--force"] * force):
            if listener:
                listener.on_status(line)
        if not self._record.is_over():
            raise JobError(f"{self.name} is still running on {self._record.head_name}")
        self.fetch()

    def fetch(self) -> Path:
        """Copies the run's directory here. Raises JobError while the run is not over."""
        if not self._is_here:
            if not self._record.is_over():
                raise JobError(f"{self.name} is still running on {self._record.head_name}")
            self._record.fetch(self.folder)
        return self.folder

    def forward(self, verb: str, *args: str, terminal: bool) -> int | None:
        return self._record.launch(verb, *args, terminal=terminal)

    def _printed_status(self) -> PrintedStatus:
        output = "\n".join(self._record.lines("status", "-o", "json"))
        return PrintedStatus.parse(output, self._record.head_name)

    @property
    def _is_here(self) -> bool:
        return not (self.folder / REMOTE).exists()


def locate(folder: Path) -> RemoteRunRecord | None:
    """Returns the record of a run that is still on another machine, or None.

    Copies a run that is over to this machine first. Raises RunFolderError when its host cannot be
    queried.
    """
    kind = RayJob if "submission_id" in read_object(folder / REMOTE) else RemoteRun
    try:
        run = kind.read(folder)
        if isinstance(run, RayJob) and not run.is_known(folder):
            run.forget(folder)
            return _check_rejected(folder, run)
        if run is not None and run.is_over():
            run.fetch(folder)
            return None
    except HostError as error:
        raise RunFolderError(f"{folder}: {error}") from None
    return run


def _check_rejected(folder: Path, run: RayJob) -> None:
    """Checks the folder of a run whose job the cluster did not accept.

    The run is then in its earlier state. Raises RunFolderError when there was no earlier attempt.
    """
    if not (folder / RecordedState.FILE).exists():
        raise RunFolderError(
            f"{folder}: {run.head_name} has not accepted the job {run.submission_id}, and nothing "
            "of it runs. Start it again, with --fresh"
        )
