"""Waits for the runs in a job's `after`, then completes the job."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from launcher.chains.link import resolve
from launcher.core.errors import JobError, SlipwayError
from launcher.core.formatting import format_seconds
from launcher.core.states import RunState
from launcher.core.wait import wait_until
from launcher.executors.handles import handle_of
from launcher.planning.spec import LaunchSpec
from launcher.runs.folder import find_run
from launcher.runs.status import RunStatus, describe

L = TypeVar("L", bound=LaunchSpec)
POLL_INTERVAL_S = 1.0
STILL_OPEN = (RunState.QUEUED, RunState.REMOTE, RunState.UNKNOWN)
"""States in which a run that no process of this machine drives may still finish."""


class CancelledError(JobError):
    """Raised for a run that does not start, because a run in its `after` has not finished."""


def wait_for_runs(launch: L, on_status: Callable[[str], None]) -> L:
    """Waits until the runs in `after` have finished; returns the launch that starts then.

    Its job has no `after`, and an explicit checkpoint in `init_from`. `on_status` receives what
    the launch waits for, whenever that changes.

    Raises CancelledError when a run has ended without finishing, when its checkpoint does not
    exist, and after `deadlines.after_s`.
    """
    limit_s = launch.job.deadlines.after_s or math.inf
    waiting = _Waiting(launch, on_status)
    if not wait_until(waiting.is_over, limit_s, poll_interval_s=POLL_INTERVAL_S):
        raise CancelledError(
            f"cancelled: {waiting.text} after {format_seconds(limit_s)} (deadlines.after_s)"
        )
    ready = replace(launch, job=launch.job.model_copy(update={"after": ()}))
    try:
        return resolve(ready)
    except SlipwayError as error:
        raise CancelledError(f"cancelled: checkpoint.init_from: {error}") from None


class _Waiting:
    """The runs in `after` that have not finished yet."""

    def __init__(self, launch: LaunchSpec, on_status: Callable[[str], None]) -> None:
        self.text = ""
        self._names, self._runs = list(launch.job.after), launch.run_dir.parent
        self._on_status = on_status

    def is_over(self) -> bool:
        """Returns whether all have finished. Raises CancelledError when one never does."""
        found = {name: _read(name, self._runs) for name in self._names}
        for name, status in found.items():
            if status and not _may_finish(status):
                raise CancelledError(f"cancelled: {describe(status)}")
            if status and status.state is RunState.FINISHED and not status.is_alive:
                self._names.remove(name)
        if self._names:
            texts = (_progress(name, found[name]) for name in self._names)
            self._report(f"waiting for {', '.join(texts)}")
        return not self._names

    def _report(self, text: str) -> None:
        if text != self.text:
            self.text = text
            self._on_status(text)


def _read(name: str, runs: Path) -> RunStatus | None:
    """Returns the status of a run; None when it cannot be read now.

    Raises CancelledError when there is no such run.
    """
    try:
        folder = find_run(name, runs)
    except SlipwayError as error:
        raise CancelledError(f"cancelled: {error}") from None
    try:
        return handle_of(folder).status()
    except SlipwayError:
        return None  # a host that does not answer may do so later


def _may_finish(status: RunStatus) -> bool:
    has_finished = status.state is RunState.FINISHED
    return status.is_alive or has_finished or status.state in STILL_OPEN


def _progress(name: str, status: RunStatus | None) -> str:
    return f"{name}, which is {status.displayed_state.replace('_', ' ')}" if status else name
