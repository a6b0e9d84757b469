"""Calls into Ray: those that have no deadline of their own get one here. Ray late."""

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from launcher.core.errors import ProviderError

T = TypeVar("T")

INTERRUPTED_WAIT_S = 2.0
LOOK_S = 0.5
GATHER_S = 0.02
"""For more answers after the first: to look for them costs time for each host of the gang."""


def answered(calls: list[Any], limit_s: float) -> list[Any]:
    """Those of calls into Ray that have returned, after `limit_s` at most.

    All of them: one at a time, and the answers of a thousand hosts wait until they look silent.
    """
    import ray

    ready, _ = ray.wait(calls, num_returns=1, timeout=limit_s)
    if ready:
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=GATHER_S)
    return ready


def bounded(
    what: str, limit_s: float, call: Callable[[], T], head_is_down: Callable[[], bool] | None = None
) -> T:
    """What `call` returns or raises, made in a thread: nothing else ends a wait inside Ray's C++.

    Raises ProviderError where there is nothing after `limit_s`, or as soon as the head is gone:
    a call that needs it then waits for it, until Ray ends this process after 60 s. The thread is
    left behind.
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
                answer, error = answers.get(timeout=min(LOOK_S, left_s))
                break
            if head_is_down is not None and head_is_down():
                raise ProviderError(f"{what}: the head of the Ray cluster has ended")
        else:
            raise ProviderError(f"{what}: Ray did not answer in {limit_s:.0f} s")
    except KeyboardInterrupt:
        thread.join(INTERRUPTED_WAIT_S)  # most calls end at once, and Ray is then in order
        raise
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
