"""Notifies the targets of a run about its events, while it runs and at its end."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core.events import StateEvent
from launcher.notify.notices import Notice, RunProgress
from launcher.notify.outbox import Outbox, target_id
from launcher.notify.sender import Sender
from launcher.notify.watcher import Watcher
from launcher.planning.notify_targets import targets_of
from launcher.planning.spec import LaunchSpec
from trainer.contract.config.notify import AnyTarget, NotifyEvent
from trainer.contract.protocol.events import Event

END_TIMEOUT_S = 15.0
"""Seconds at the end of a run in which the last notices are tried."""
SHOWN_AFTER_S = 1.0


class Notifier:
    """Queues notices and lets a thread for each target send them. Never waits, except in `close`.

    Notices to a target whose secrets this process does not have are left to one that has them.
    """

    def __init__(self, folder: Path, targets: Sequence[AnyTarget]) -> None:
        """Opens the file of the run's notices. Raises OSError."""
        self._outbox = Outbox(folder)
        self._targets = targets
        self._senders: Mapping[str, Sender] = {
            target_id(target): Sender(target, self._outbox, folder)
            for target in targets
            if os.environ.keys() >= set(target.secret_names)
        }

    @property
    def is_owner(self) -> bool:
        """Whether no other process sends notices of this run."""
        return self._outbox.is_owner

    def has_queued(self, event: NotifyEvent, attempt: int | None) -> bool:
        """Returns whether an event of an attempt was queued before."""
        notices = (notice for notice, _ in self._outbox.read().notices.values())
        return any(notice.event == event and notice.attempt == attempt for notice in notices)

    def send_pending(self) -> None:
        """Sends what a process that died has left."""
        if self.is_owner:
            for notice, target in self._outbox.read().pending(self._senders):
                self._senders[target].send(notice)

    def send(self, notice: Notice) -> None:
        """Records a notice and hands it to its targets."""
        targets = [target for target in self._targets if notice.event in target.events]
        if targets:
            self._outbox.queue(notice, targets)
        for target in targets:
            if sender := self._senders.get(target_id(target)):
                sender.send(notice)

    def close(
        self, timeout_s: float = END_TIMEOUT_S, on_wait: Callable[[], None] = lambda: None
    ) -> list[str]:
        """Waits for the last deliveries, then gives up the rest; returns a text for each of these.

        `on_wait`: called when it takes longer than a moment. Ctrl-C ends the wait.
        """
        deadline = time.monotonic() + timeout_s
        for sender in self._senders.values():
            sender.finish()
        with suppress(KeyboardInterrupt):
            if not self._wait(time.monotonic() + min(timeout_s, SHOWN_AFTER_S)):
                on_wait()
                self._wait(deadline)
        reason = f"not delivered within {timeout_s:.0f} s of the end"
        texts = [text for sender in self._senders.values() for text in sender.cancel(reason)]
        self._outbox.close()
        return texts

    def _wait(self, deadline: float) -> bool:
        waits = [sender.wait(deadline - time.monotonic()) for sender in self._senders.values()]
        return all(waits)


class RunNotifier:
    """The notifier of the run that this process drives. Pass it the run's events."""

    def __init__(self, launch: LaunchSpec, targets: Sequence[AnyTarget]) -> None:
        self._progress = RunProgress(
            run=launch.job.name,
            folder=str(launch.run_dir),
            cluster=launch.cluster_name,
            steps=launch.steps,
        )
        self._notifier = Notifier(launch.run_dir, targets)
        is_wanted = any("lost" in target.events for target in targets)
        self._watcher = Watcher(launch.run_dir) if is_wanted else None
        self._has_ended = False
        self._notifier.send_pending()

    @classmethod
    def of(cls, launch: LaunchSpec) -> "RunNotifier | None":
        """Returns the notifier of a run; None when it has no targets."""
        targets = targets_of(launch.job)
        return cls(launch, targets) if targets else None

    def on_event(self, event: Event) -> None:
        """Notifies an event. Does not wait."""
        if isinstance(event, StateEvent):
            self._has_ended = event.state.is_terminal
        if notice := self._progress.notice_of(event):
            self._notifier.send(notice)

    def close(self, on_wait: Callable[[], None]) -> list[str]:
        """Sends the last notices, see `Notifier.close`.

        A run without a recorded end, after an error of the launcher itself, will be lost.
        """
        if self._watcher and self._has_ended:
            self._watcher.close()
        elif self._watcher:
            self._watcher.report()
        return self._notifier.close(on_wait=on_wait)
