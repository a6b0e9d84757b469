"""The process that serves a cluster's queue: `python -m launcher.commands.queue_worker FOLDER`.

It starts each run when the cluster is free, and ends with the last entry. It decides only by the
files of the queue and of the runs, so it can be killed at any moment: the next worker continues.
Runs are detached, so they survive it. A run starts once however many workers try: its driver
compares its state under its lock, see `DriverOrder.open`.
"""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher import api
from launcher.core.background import leave_parent, redirect_streams
from launcher.core.errors import SlipwayError
from launcher.core.exit_codes import OK
from launcher.core.results import RunState
from launcher.executors.local_run import request_stop
from launcher.executors.options import LaunchOptions
from launcher.queue.decisions import (
    Action,
    Adopt,
    Preempt,
    Remove,
    Requeue,
    RunPhase,
    Start,
    next_action,
)
from launcher.queue.entries import Entry
from launcher.queue.folder import Queue, queue_name
from launcher.runs.directory import RunDir, is_alive, launched_in
from launcher.runs.registry import is_run, registered
from launcher.runs.state_file import RecordedState

POLL_INTERVAL_S = 0.5
ENDED = (RunState.FINISHED, RunState.FAILED, RunState.OVER_BUDGET)
"""States after which a run does not go back into the queue."""


class Worker:
    """Serves one queue until it has no entry."""

    def __init__(self, queue: Queue, poll_interval_s: float) -> None:
        self._queue, self._poll_interval_s = queue, poll_interval_s
        self._busy_with: Path | None = None
        """A run outside of the queue that used the cluster when the worker last looked."""

    def run(self) -> None:
        while entries := self._queue.entries():
            action = next_action(entries, _phase_of, self._is_free, time.time())
            try:
                if action:
                    self._carry_out(action)
                    continue
            except SlipwayError as error:  # a run has changed meanwhile
                self._log(str(error))
            time.sleep(self._poll_interval_s)

    def _carry_out(self, action: Action) -> None:
        entry = action.entry
        self._log(f"{type(action).__name__} {entry.folder}")
        match action:
            case Start():
                self._start(entry)
            case Adopt():
                self._queue.update(entry, is_started=True)
            case Preempt():
                if self._queue.update(entry, stop_requested=time.time()):
                    request_stop(entry.folder)
            case Requeue():
                _set_state(entry, RunState.QUEUED, "preempted by a run with a higher priority")
                if not self._queue.update(entry, is_started=False, stop_requested=None):
                    _set_state(entry, RunState.STOPPED)  # `launch stop` has removed the entry
            case Remove():
                self._queue.remove(entry)

    def _start(self, entry: Entry) -> None:
        """Starts or resumes the run of an entry; records why that is impossible in the run."""
        if not self._queue.update(entry, is_started=True, stop_requested=None):
            return  # it was removed
        options = LaunchOptions(detach=True, quiet=True, assume_yes=True, compile_check=False)
        try:
            with _environment(self._queue.environment(entry)):
                api.restart(entry.folder, (None, False, None), options, from_queue=True)
        except SlipwayError as error:
            self._record_failure(entry.folder, str(error))
        except Exception as error:  # a defect with this run must not keep the others waiting
            traceback.print_exc()
            self._record_failure(entry.folder, f"internal error: {error!r}")

    def _record_failure(self, folder: Path, reason: str) -> None:
        """Records that a waiting run cannot start. Does nothing when a process has begun it."""
        self._log(reason)
        with RunDir.open(folder) as run:
            if run.recorded.state is RunState.QUEUED:
                run.set_state(RunState.FAILED, run.recorded.position, reason=reason)

    def _log(self, text: str) -> None:
        print(f"{time.strftime('%F %T')} {text}", flush=True)

    def _is_free(self) -> bool:
        """Returns whether none of this user's runs outside of the queue uses the cluster."""
        if self._busy_with is None or not self._uses_cluster(self._busy_with):
            self._busy_with = next(filter(self._uses_cluster, registered()), None)
        return self._busy_with is None

    def _uses_cluster(self, folder: Path) -> bool:
        if not is_alive(folder):
            return False
        reference = RecordedState.read_valid(folder).cluster
        return reference is not None and (
            queue_name(reference, launched_in(folder)) == self._queue.folder.name
        )


def _phase_of(entry: Entry) -> RunPhase:
    folder = entry.folder
    if not is_run(folder):
        return RunPhase.ENDED
    alive = is_alive(folder)  # before the state: the final one is written before the lock is free
    state = RecordedState.read_valid(folder).state
    if state in ENDED and not alive:
        return RunPhase.ENDED
    alive = alive or is_alive(folder)  # it may have begun between the two reads
    if state is RunState.QUEUED:
        return RunPhase.BEGINNING if alive else RunPhase.WAITING
    return RunPhase.ACTIVE if alive else RunPhase.STOPPED


def _set_state(entry: Entry, state: RunState, reason: str = "") -> None:
    """Records the state of a run that is not running. Raises RunFolderError when it is."""
    with RunDir.open(entry.folder) as run:
        run.set_state(state, run.recorded.position, reason=reason)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Gives this process another environment, that of the command that has queued a run."""
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(variables)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def serve(folder: Path, poll_interval_s: float = POLL_INTERVAL_S) -> int:
    """Serves a queue in the background until it has no entry, unless another process does."""
    leave_parent()
    queue = Queue(folder)
    redirect_streams(folder / "worker.log")
    while queue.entries():  # again after each release: a command may rely on this worker
        with queue.serving() as is_mine:
            if not is_mine:
                return OK
            Worker(queue, poll_interval_s).run()
    return OK


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1])))
