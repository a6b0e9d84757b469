"""Calls into Ray that have no deadline of their own get one here."""

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from launcher.providers.errors import ProviderError

T = TypeVar("T")

INTERRUPTED_WAIT_S = 2.0


def bounded(what: str, limit_s: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises, made in a thread: nothing else ends a wait inside Ray's C++.

    Raises ProviderError where there is nothing after `limit_s`; the thread is left behind then.
    """
    answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def make_call() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:
            answers.put((None, error))

    thread = threading.Thread(target=make_call, daemon=True)
    thread.start()
    try:
        answer, error = answers.get(timeout=limit_s)
    except queue.Empty:
        raise ProviderError(f"{what}: Ray did not answer in {limit_s:.0f} s") from None
    except KeyboardInterrupt:
        thread.join(INTERRUPTED_WAIT_S)  # most calls end at once, and Ray is then in order
        raise
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]
