"""Waits for a condition that no event announces: polls it until it holds or the time is up."""

import math
import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], bool],
    timeout_s: float = math.inf,
    *,
    poll_interval_s: float,
    on_wait: Callable[[float], None] = lambda waited_s: None,
) -> bool:
    """Polls a condition every `poll_interval_s` until it holds.

    Returns False when it does not hold after `timeout_s`. Checks it at least once. `on_wait`
    receives the seconds waited before each pause. An exception of the condition ends the wait.
    """
    began = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            return False
        on_wait(waited_s)
        time.sleep(poll_interval_s)
    return True
