"""Notifies that a run was lost: once, by whichever process finds it first.

`python -m launcher.notify.lost FOLDER` does so for the watcher of a run.
"""

import sys
import time
from collections.abc import Iterable
from pathlib import Path

from launcher.core.states import RunState
from launcher.core.wait import wait_until
from launcher.notify.notifier import Notifier
from launcher.notify.recorded import notice_for, notifier_for
from launcher.runs.folder import is_alive, resume_command
from launcher.runs.registry import registered
from launcher.runs.status import RunStatus, read_status

COMMAND_TIMEOUT_S = 5.0
"""Seconds that a command which finds a lost run tries to notify it."""
WATCHER_TIMEOUT_S = 60.0
"""The same for the watcher of a run, which no user waits for."""
DEATH_TIMEOUT_S = 10.0
"""Seconds until the lock of a killed process is free."""
SETTLING_S = 2.0
"""Seconds in which `launch stop --force` records that it has ended the run."""
POLL_INTERVAL_S = 0.1
MESSAGE = "the launcher process exited without recording a result"


def notify_lost(found: Iterable[RunStatus], timeout_s: float = COMMAND_TIMEOUT_S) -> None:
    """Notifies each lost run among those that this user has started, unless that was done."""
    lost = [run for run in found if run.state is RunState.LOST]
    mine = {folder.resolve() for folder in registered()} if lost else set()
    notifiers = [_notify(run) for run in lost if run.folder.resolve() in mine]
    deadline = time.monotonic() + timeout_s
    for notifier in filter(None, notifiers):
        notifier.close(max(0.0, deadline - time.monotonic()))


def _notify(run: RunStatus) -> Notifier | None:
    """Begins to notify a lost run; returns None when it has no target for that."""
    notifier = notifier_for(run, "lost")
    if notifier is None:
        return None
    if notifier.is_owner:
        notifier.send_pending()
        if not notifier.has_queued("lost", run.attempt):
            again = f"continue with: {resume_command(run.folder)}"
            notifier.send(notice_for(run, "lost", f"{MESSAGE}; {again}"))
    return notifier


def main() -> None:
    """Notifies the run in the folder that the command line names, if it is lost."""
    folder = Path(sys.argv[1])
    wait_until(lambda: not is_alive(folder), DEATH_TIMEOUT_S, poll_interval_s=POLL_INTERVAL_S)
    time.sleep(SETTLING_S)
    notify_lost([read_status(folder)], WATCHER_TIMEOUT_S)


if __name__ == "__main__":
    main()
