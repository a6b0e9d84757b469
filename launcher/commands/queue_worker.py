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
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from launcher import api
from launcher.core.background import leave_parent, redirect_streams
from launcher.core.errors import SlipwayError
from launcher.core.exit_codes import OK
from launcher.core.formatting import pluralize
from launcher.core.states import RunState
from launcher.executors.local_run import request_stop
from launcher.executors.options import LaunchOptions
from launcher.notify.recorded import notify_failure
from launcher.queue.decisions import (
    Action,
    Adopt,
    Preempt,
    Remove,
    Requeue,
    Resize,
    RunPhase,
    RunView,
    Start,
    next_action,
)
from launcher.queue.entries import Entry
from launcher.queue.folder import Queue, queue_name
from launcher.requests.client import ask
from launcher.requests.messages import HostsRequest
from launcher.runs.directory import RunDir
from launcher.runs.folder import is_alive, launched_in
from launcher.runs.registry import is_run, registered
from launcher.runs.state_file import RecordedState

POLL_INTERVAL_S = 0.5
ANSWER_TIMEOUT_S = 5.0
"""Seconds for the driver of a run to answer; the other runs of the queue wait meanwhile."""
ENDED = (RunState.FINISHED, RunState.FAILED, RunState.OVER_BUDGET, RunState.CANCELLED)
"""States after which a run does not go back into the queue."""


class Worker:
    """Serves one queue until it has no entry."""

    def __init__(self, queue: Queue, poll_interval_s: float) -> None:
        self._queue, self._poll_interval_s = queue, poll_interval_s
        self._busy_with: Path | None = None
        """A run outside of the queue that used the cluster when the worker last looked."""

    def run(self) -> None:
        while entries := self._queue.entries():
            is_free = partial(self._is_free, {entry.folder for entry in entries})
            action = next_action(entries, _view_of, is_free, time.time())
            try:
                if action:
                    self._carry_out(action)
                    continue
            except SlipwayError as error:  # a run has changed meanwhile
                self._log(str(error))
            time.sleep(self._poll_interval_s)

    def _carry_out(self, action: Action) -> None:
        entry = action.entry
        hosts = action.hosts if isinstance(action, Start | Resize) else None
        on_hosts = "" if hosts is None else f" on {pluralize(hosts, 'host')}"
        self._log(f"{type(action).__name__} {entry.folder}{on_hosts}")
        match action:
            case Start():
                self._start(entry, hosts)
            case Resize(hosts=hosts):
                _ask_for_hosts(entry.folder, hosts)
                self._queue.update(entry, hosts=hosts)
            case Adopt():
                self._queue.update(entry, is_started=True)
            case Preempt():
                if self._queue.update(entry, stop_requested=time.time()):
                    request_stop(entry.folder)
            case Requeue():
                _set_state(entry, RunState.QUEUED, "preempted by a run with a higher priority")
                again = {"is_started": False, "stop_requested": None, "hosts": None}
                if not self._queue.update(entry, **again):
                    _set_state(entry, RunState.STOPPED)  # `launch stop` has removed the entry
            case Remove():
                self._queue.remove(entry)

    def _start(self, entry: Entry, hosts: int | None) -> None:
        """Starts or resumes the run of an entry; records why that is impossible in the run."""
        if not self._queue.update(entry, is_started=True, stop_requested=None, hosts=hosts):
            return  # it was removed
        options = LaunchOptions(
            detach=True, quiet=True, assume_yes=True, compile_check=False, host_limit=hosts
        )
        environment = self._queue.environment(entry)
        try:
            with _environment(environment):
                api.restart(entry.folder, (None, False, None), options, from_queue=True)
        except SlipwayError as error:
            reason = str(error)
        except Exception as error:  # a defect with this run must not keep the others waiting
            traceback.print_exc()
            reason = f"internal error: {error!r}"
        else:
            return
        if self._record_failure(entry.folder, reason):
            notify_failure(entry.folder, environment)

    def _record_failure(self, folder: Path, reason: str) -> bool:
        """Records that a waiting run cannot start.

        Returns False when it does not wait: a process has begun it, and notifies its end.
        """
        self._log(reason)
        with RunDir.open(folder) as run:
            if run.recorded.state is not RunState.QUEUED:
                return False
            run.set_state(RunState.FAILED, run.recorded.position, reason=reason)
        return True

    def _log(self, text: str) -> None:
        print(f"{time.strftime('%F %T')} {text}", flush=True)

    def _is_free(self, queued: Collection[Path]) -> bool:
        """Returns whether none of this user's runs outside of the queue uses the cluster."""
        before = self._busy_with
        if before is None or before in queued or not self._uses_cluster(before):
            others = (folder for folder in registered() if folder not in queued)
            self._busy_with = next(filter(self._uses_cluster, others), None)
        return self._busy_with is None

    def _uses_cluster(self, folder: Path) -> bool:
        if not is_alive(folder):
            return False
        reference = RecordedState.read_valid(folder).cluster
        return reference is not None and (
            queue_name(reference, launched_in(folder)) == self._queue.folder.name
        )


def _view_of(entry: Entry) -> RunView:
    folder = entry.folder
    if not is_run(folder):
        return RunView(RunPhase.ENDED)
    alive = is_alive(folder)  # before the state: the final one is written before the lock is free
    recorded = RecordedState.read_valid(folder)
    if recorded.state in ENDED and not alive:
        return RunView(RunPhase.ENDED)
    alive = alive or is_alive(folder)  # it may have begun between the two reads
    if recorded.state is RunState.QUEUED:
        return RunView(RunPhase.BEGINNING if alive else RunPhase.WAITING)
    if not alive:
        return RunView(RunPhase.STOPPED)
    has_begun = recorded.state is not RunState.WAITING_FOR_RUNS
    return RunView(RunPhase.ACTIVE, recorded.hosts if has_begun else None)


def _ask_for_hosts(folder: Path, hosts: int) -> None:
    """Asks a run to go on with at most `hosts` hosts. Raises NotLiveError and HostError."""
    answers = ask(folder, HostsRequest(hosts), lambda: is_alive(folder), ANSWER_TIMEOUT_S)
    for _ in answers:
        pass


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
