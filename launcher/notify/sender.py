"""Sends the notices of one target, one after another, from a thread of its own."""

import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from launcher.notify.delivery import DeliveryError, deliver
from launcher.notify.notices import Notice
from launcher.notify.outbox import Outbox
from trainer.contract.config.notify import AnyTarget, CommandTarget

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""Seconds between two tries; each pause is twice as long as the one before."""
GIVE_UP_AFTER_S = 3600.0
"""Age of a notice, in seconds, after which it is not tried again."""
CANCEL_TIMEOUT_S = 5.0
"""Seconds in which a cancelled command ends."""


@dataclass
class _Item:
    """A notice that waits for its delivery."""

    notice: Notice
    tries: int = 0
    last_error: str = "not tried yet"


class Sender:
    """Delivers the notices of one target, or records that it has given up."""

    def __init__(self, target: AnyTarget, outbox: Outbox, folder: Path) -> None:
        self._target, self._outbox, self._folder = target, outbox, folder
        self._items: deque[_Item] = deque()
        """Notices that wait, the oldest first."""
        self._current: _Item | None = None
        """The notice whose delivery is being tried."""
        self._failures = 0
        """Tries that have failed in a row."""
        self._changed = threading.Condition()
        self._is_closing = False
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, notice: Notice) -> None:
        """Adds a notice that is already in the outbox. Does not wait."""
        with self._changed:
            self._items.append(_Item(notice))
            self._changed.notify()
        if self._thread is None:  # as late as possible: a fork does not inherit threads
            name = f"notify {self._target.label}"
            self._thread = threading.Thread(target=self._work, daemon=True, name=name)
            self._thread.start()

    def finish(self) -> None:
        """Lets the thread end once nothing is left. From now on, pauses are short."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    def wait(self, timeout_s: float) -> bool:
        """Returns whether everything is delivered or given up, after at most `timeout_s`."""
        if self._thread:
            self._thread.join(max(0.0, timeout_s))
        return self._thread is None or not self._thread.is_alive()

    def cancel(self, reason: str) -> list[str]:
        """Gives up what is left, and ends a running command. Returns a text for each notice."""
        with self._changed:
            left = [*([self._current] if self._current else []), *self._items]
            self._current = None
            self._items.clear()
        texts = [self._give_up(item, f"{reason}; {item.last_error}") for item in left]
        self._cancelled.set()
        if isinstance(self._target, CommandTarget):
            self.wait(CANCEL_TIMEOUT_S)
        return texts

    def _work(self) -> None:
        while item := self._next():
            try:
                deliver(self._target, item.notice, self._folder, self._cancelled.is_set)
            except DeliveryError as error:
                self._on_failure(item, error)
            else:
                self._failures = 0
                if self._take_back(item):
                    self._outbox.sent(item.notice, self._target, item.tries + 1)

    def _next(self) -> _Item | None:
        """Waits for the time of the next try, and returns its notice; None at the end.

        At the end of a run the newest notice, that of the end, comes first.
        """
        began = time.monotonic()
        with self._changed:
            while not self._items and not self._is_closing:
                self._changed.wait()
            while self._items and (left_s := began + self._pause_s() - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if not self._items:
                return None
            self._current = self._items.pop() if self._is_closing else self._items.popleft()
            return self._current

    def _pause_s(self) -> float:
        if not self._failures:
            return 0.0
        if self._is_closing:
            return FIRST_PAUSE_S
        return min(FIRST_PAUSE_S * 2.0 ** (self._failures - 1), LONGEST_PAUSE_S)

    def _on_failure(self, item: _Item, error: DeliveryError) -> None:
        if not self._take_back(item):
            return
        self._failures += 1
        item.tries += 1
        item.last_error = str(error)
        if error.is_final or time.time() - item.notice.time > GIVE_UP_AFTER_S:
            self._give_up(item, item.last_error)
            return
        with self._changed:
            self._items.appendleft(item)

    def _take_back(self, item: _Item) -> bool:
        """Returns whether the notice is still this thread's: `cancel` may have given it up."""
        with self._changed:
            is_mine = self._current is item
            self._current = None
            return is_mine

    def _give_up(self, item: _Item, reason: str) -> str:
        self._outbox.given_up(item.notice, self._target, item.tries, reason)
        return f"{self._target.label} did not get the event {item.notice.event}: {reason}"
