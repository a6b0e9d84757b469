"""Writes one checkpoint in the background, with a limit on the time without progress."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager

import tensorstore

POLL_INTERVAL_S = 2.0
METRICS = "/tensorstore/kvstore/"


class StalledError(Exception):
    """Raised when this process has written nothing within the limit."""


def written_bytes() -> int:
    """Returns the bytes that tensorstore wrote in this process, to files and to object stores."""
    metrics = tensorstore.experimental_collect_matching_metrics(METRICS)
    return sum(
        int(value["value"])
        for metric in metrics
        if metric["name"].endswith("/bytes_written")
        for value in metric["values"]
    )


class Writing:
    """This process's part of one save."""

    def __init__(self, limit_s: float, report: Callable[[int], None]) -> None:
        """Begins the count of bytes; `report` receives the bytes written when they increase."""
        self._limit_s, self._report = limit_s, report
        self._before, self._written = written_bytes(), 0
        self._moved_s = time.monotonic()
        self._is_waiting = self.is_given_up = False

    def finish(self, until_finished: Callable[[], None]) -> None:
        """Calls `until_finished`, which returns at the end of the save, and raises what it raises.

        Raises StalledError when nothing was written for `limit_s`. The call itself cannot be ended
        and continues in a thread.
        """
        result = _in_a_thread(until_finished)
        while not wait([result], POLL_INTERVAL_S).done:
            self._check()
        self._check()
        result.result()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Suspends the limit while this process waits for others, which have their own limits."""
        self._is_waiting = True
        try:
            yield
        finally:
            self._moved_s, self._is_waiting = time.monotonic(), False

    def _check(self) -> None:
        now, written = time.monotonic(), written_bytes() - self._before
        if written > self._written:
            self._written, self._moved_s = written, now
            self._report(written)
        if not self._is_waiting and now - self._moved_s > self._limit_s:
            self.is_given_up = True
            raise StalledError(
                f"no bytes were written for {self._limit_s:.0f} s (deadlines.save_s), after "
                f"{self._written:,} bytes"
            )


def _in_a_thread(call: Callable[[], None]) -> Future[None]:
    """Runs `call` in a daemon thread, which does not delay the end of the process."""
    result = Future[None]()

    def run() -> None:
        try:
            call()
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(None)

    threading.Thread(target=run, name="checkpoint-writing", daemon=True).start()
    return result
