"""The handle of a run that a process of this machine drives, or that has ended."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.text import Text

from launcher.core.errors import InterruptError, JobError, SlipwayError
from launcher.core.events import Listener
from launcher.core.formatting import format_seconds
from launcher.core.states import RunState
from launcher.core.wait import wait_until
from launcher.executors.follow import detached, follow_run, new_events, new_lines
from launcher.executors.handle import RunHandle
from launcher.executors.options import LaunchOptions
from launcher.providers.kubernetes.cleanup import release
from launcher.queue.folder import Place, Queue, queue_of
from launcher.runs import summary
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError, is_alive, run_word
from launcher.runs.goodput import Goodput
from launcher.runs.known_process import KnownProcess
from launcher.runs.live import read_goodput
from launcher.runs.state_file import Position, RecordedState
from launcher.runs.status import RunStatus, read_status
from trainer.contract.protocol.events import Event

ENDING_TIMEOUT_S = 60.0
"""Seconds to wait beyond the time that the programs have to save."""
OWNER_TIMEOUT_S = 10.0
"""Seconds to wait until a run that has just begun has recorded its process."""
SIGNALS_TIMEOUT_S, KILLED_TIMEOUT_S = 5.0, 30.0
POLL_INTERVAL_S, QUEUE_POLL_INTERVAL_S = 0.1, 0.5


class LocalRunHandle(RunHandle):
    """A run whose driver shares this machine's processes and files, or that has ended."""

    def status(self) -> RunStatus:
        return read_status(self.folder)

    def goodput(self) -> Goodput:
        return read_goodput(self.folder, is_alive=is_alive(self.folder))

    def events(self) -> Iterator[Event]:
        return new_events(self.folder)

    def logs(self, host: int | None = None) -> Iterator[str]:
        return new_lines(self.folder, host)

    def wait(self, listener: Listener | None = None) -> RunStatus:
        while True:
            await_turn(self.folder)
            for event in self.events():
                if listener:
                    listener.on_event(event)
            if not _waits(self.folder):
                return self.status()

    def follow(self, options: LaunchOptions) -> RunStatus:
        """Displays the run until its end, also after it has stopped for another one."""

        def show(place: Place) -> None:
            text = f"{self.name} waits in the queue of its cluster: {place}"
            options.console.print(Text(text), soft_wrap=True)

        while True:
            try:
                await_turn(self.folder, show)
                found = follow_run(self.folder, options)
            except KeyboardInterrupt:
                raise detached(self.folder) from None
            except SlipwayError:
                if is_alive(self.folder) or not _waits(self.folder):
                    raise
            else:
                if not _waits(self.folder):
                    return found

    def stop(self, *, force: bool = False, listener: Listener | None = None) -> None:
        if queued := queue_of(self.folder):
            queue, entry = queued
            queue.remove(entry)
        stop_run(self.folder, force=force, listener=listener or Listener())

    def fetch(self) -> Path:
        return self.folder


def await_turn(folder: Path, on_place: Callable[[Place], None] = lambda place: None) -> None:
    """Waits until a run in a queue has begun or has left it.

    Calls `on_place` with its place, and whenever that changes. Keeps a worker serving the queue.
    """
    shown: Place | None = None
    while queue := _waits(folder):
        queue.start_worker()
        place = queue.places().get(folder)
        if place and place != shown:
            on_place(place)
            shown = place
        time.sleep(QUEUE_POLL_INTERVAL_S)


def _waits(folder: Path) -> Queue | None:
    """Returns the queue that is going to start or resume a run; None for a run that has begun."""
    queued = queue_of(folder)
    if queued is None:
        return None
    queue, entry = queued
    has_stopped = entry.stop_requested is not None and not is_alive(folder)
    is_queued = RecordedState.read(folder).state is RunState.QUEUED
    return queue if is_queued or has_stopped else None


def request_stop(folder: Path) -> None:
    """Sends a run the signal to save and stop, and returns. Raises RunFolderError."""
    with _owner(folder) as owner:
        _send(owner, signal.SIGTERM)


def stop_run(folder: Path, *, force: bool, listener: Listener) -> None:
    """Ends a run, with a checkpoint or immediately, and waits for its end.

    Deletes what a run that has ended has left in Kubernetes.

    Raises RunFolderError when the run's process cannot be signalled from here, HostError when
    leftovers cannot be deleted, JobError when the run does not end, and InterruptError after
    Ctrl-C: the run continues to stop.
    """
    if _leave_queue(folder):
        listener.on_status(f"{folder.name} is removed from the queue")
    if not is_alive(folder):
        if release(folder):
            listener.on_status("the Kubernetes resources that the run had left are deleted")
        return
    try:
        with _owner(folder) as owner:
            ended = _end_at_once(folder, owner) if force else _stop(folder, owner, listener)
    except KeyboardInterrupt:
        raise InterruptError(
            f"no longer waiting: {folder.name} continues to stop", run_dir=folder
        ) from None
    if not ended:
        raise JobError(
            f"{folder.name} is still running",
            hint=f"End it immediately: {_command(folder)} --force",
            run_dir=folder,
        )


def _stop(folder: Path, owner: KnownProcess | None, listener: Listener) -> bool:
    """Stops the run in order, which takes as long as a checkpoint.

    Returns False when the run still runs after the deadline.
    """
    grace_s = RecordedState.read(folder).grace_s or 0.0
    timeout_s = grace_s + ENDING_TIMEOUT_S
    _send(owner, signal.SIGTERM)
    text = f"stopping {folder.name}, with a checkpoint (immediately: {_command(folder)} --force)"
    listener.on_status(text)

    def show(waited_s: float) -> None:
        listener.on_status(f"{text}: {format_seconds(waited_s)} of {format_seconds(timeout_s)}")

    return wait_until(
        lambda: not is_alive(folder), timeout_s, poll_interval_s=POLL_INTERVAL_S, on_wait=show
    )


def _end_at_once(folder: Path, owner: KnownProcess | None) -> bool:
    """Ends the launcher immediately by a second SIGTERM; its reapers end all that it started.

    Sends SIGKILL when that has no effect. Returns whether the run has ended.
    """

    def is_over() -> bool:
        _send(owner, signal.SIGTERM)
        return not is_alive(folder)

    if not wait_until(is_over, SIGNALS_TIMEOUT_S, poll_interval_s=POLL_INTERVAL_S):
        _send(owner, signal.SIGKILL)
    ended = wait_until(
        lambda: not is_alive(folder), KILLED_TIMEOUT_S, poll_interval_s=POLL_INTERVAL_S
    )
    if ended:
        _record_stop(folder)
    return ended


def _leave_queue(folder: Path) -> bool:
    """Records the stop of a run that waits in a queue.

    Returns False for a run that has begun, or that a process is starting now.
    """
    if RecordedState.read(folder).state is not RunState.QUEUED:
        return False
    try:
        with RunDir.open(folder) as run:
            is_waiting = run.recorded.state is RunState.QUEUED
            if is_waiting:
                run.set_state(RunState.STOPPED, run.recorded.position)
            return is_waiting
    except RunFolderError:
        if is_alive(folder):
            return False
        raise


def _record_stop(folder: Path) -> None:
    """Records the stop of a run that was ended before it could record it."""
    found = read_status(folder)
    if found.state is not RunState.LOST:
        return
    saved = summary.read(folder).history.checkpoint
    with RunDir.open(folder) as run:
        run.set_state(RunState.STOPPED, Position(found.step, saved and saved.step))


@contextmanager
def _owner(folder: Path) -> Iterator[KnownProcess | None]:
    """Yields the process that runs this run, or None when it has just ended.

    Raises RunFolderError when the process is not on this machine, or is another user's.
    """
    owner: KnownProcess | None = None

    def is_found() -> bool:
        nonlocal owner
        recorded = RecordedState.read(folder)
        if recorded.state is not RunState.QUEUED:  # else the process is the one that has queued it
            owner = KnownProcess.find(recorded.pid, recorded.start_time)
        return owner is not None or not is_alive(folder)

    if not wait_until(is_found, OWNER_TIMEOUT_S, poll_interval_s=POLL_INTERVAL_S):
        raise RunFolderError(
            f"{folder}: this run is running, but its process is none of this machine, or another "
            "user's. Stop it there"
        )
    with owner or nullcontext():
        yield owner


def _send(owner: KnownProcess | None, number: signal.Signals) -> None:
    if owner is not None:
        owner.send(number)


def _command(folder: Path) -> str:
    return f"launch stop {run_word(folder)}"
