"""Calls into Ray, with a deadline for those that have none. Imports Ray late."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from launcher.core.errors import HostError

T = TypeVar("T")

INTERRUPTED_WAIT_S = 2.0
POLL_INTERVAL_S = 0.5
GATHER_S = 0.02
"""Seconds to wait for more answers after the first: each check costs time per host of the gang."""


def answered(calls: list[Any], limit_s: float) -> list[Any]:
    """Returns the calls into Ray that have returned, after `limit_s` at most.

    It takes all answers together. One at a time, those of a thousand hosts wait until the hosts
    appear silent.
    """
    import ray

    ready, _ = ray.wait(calls, num_returns=1, timeout=limit_s)
    if ready:
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=GATHER_S)
    return ready


def first_line(error: Exception) -> str:
    """Returns the first line of an error's text: Ray's own explanations take pages."""
    return str(error).strip().splitlines()[0]


def bounded(
    what: str, limit_s: float, call: Callable[[], T], head_is_down: Callable[[], bool] | None = None
) -> T:
    """Returns or raises the result of `call`, which runs in a thread.

    Nothing else ends a wait inside Ray's C++. Raises HostError when no result arrives within
    `limit_s`, or as soon as the head is gone. A call that needs a lost head waits for it until Ray
    ends this process after 60 s. The thread is left running.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def make_call() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    thread = threading.Thread(target=make_call, daemon=True)
    thread.start()
    deadline = time.monotonic() + limit_s
    try:
        while (left_s := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                answer, error = answers.get(timeout=min(POLL_INTERVAL_S, left_s))
                break
            if head_is_down is not None and head_is_down():
                raise HostError(f"{what}: the head of the Ray cluster has ended")
        else:
            raise HostError(f"{what}: Ray did not answer within {limit_s:.0f} s")
    except KeyboardInterrupt:
        thread.join(INTERRUPTED_WAIT_S)  # most calls end immediately and leave Ray consistent
        raise
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
