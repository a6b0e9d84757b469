"""Notifies events of a run that no process drives, from what is recorded in its folder.

`python -m launcher.notify.recorded FOLDER` notifies that a run has failed before a process had it:
a queue could not start it. The program continues in the background, with the environment that it
was started with.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.core.background import leave_parent
from launcher.core.environment import child_environment
from launcher.core.errors import SlipwayError
from launcher.core.events import StateEvent
from launcher.notify.notices import Notice, RunProgress
from launcher.notify.notifier import Notifier
from launcher.planning.notify_targets import targets_of
from launcher.runs import summary
from launcher.runs.status import RunStatus, read_status
from trainer.contract.config.command import load_job
from trainer.contract.config.notify import NotifyEvent

PROGRAM = "launcher.notify.recorded"
FAILED_TIMEOUT_S = 60.0
"""Seconds in which the program tries to deliver a notice; nothing waits for it."""


def notifier_for(run: RunStatus, event: NotifyEvent) -> Notifier | None:
    """Returns the notifier of a run; None when no target wants the event, or none can be read."""
    try:
        targets = targets_of(load_job(run.folder / "job.yaml").value)
        wanted = any(event in target.events for target in targets)
        return Notifier(run.folder, targets) if wanted else None
    except (SlipwayError, OSError):
        return None  # a damaged job, or a folder that cannot be written: the caller goes on


def notice_for(run: RunStatus, event: NotifyEvent, message: str) -> Notice:
    """Returns a notice at the last recorded position of a run."""
    saved = summary.read(run.folder).history.checkpoint
    progress = RunProgress(
        run=run.name,
        folder=str(run.folder),
        cluster=run.cluster_name,
        steps=run.steps,
        step=run.step,
        loss=run.loss,
        checkpoint=saved and saved.step,
    )
    state = StateEvent(time=time.time(), attempt=run.attempt, state=run.state)
    return progress.notice(event, state, message)


def notify_failure(folder: Path, environment: Mapping[str, str]) -> None:
    """Starts the program for the run in `folder`, without waiting for deliveries."""
    own = {"PYTHONPATH": child_environment()["PYTHONPATH"]}
    subprocess.run(
        [sys.executable, "-m", PROGRAM, str(folder)],
        stdin=subprocess.DEVNULL,
        env={**environment, **own},
        check=False,
    )


def main() -> None:
    """Notifies the failure of the run in the folder that the command line names."""
    leave_parent()
    run = read_status(Path(sys.argv[1]))
    if notifier := notifier_for(run, "failed"):
        notifier.send(notice_for(run, "failed", run.recorded.reason or "it could not start"))
        notifier.close(FAILED_TIMEOUT_S)


if __name__ == "__main__":
    main()
