"""An attempt that is stopped at one place in its code while another one works."""

import threading
from collections.abc import Callable
from typing import Any

WAIT_S = 60.0


class Halt:
    """Stops the thread that comes to a method, until it is let go."""

    def __init__(self) -> None:
        self._reached, self._released = threading.Event(), threading.Event()

    def after(self, method: Callable[..., Any], stops: Callable[[Any], bool]) -> Callable[..., Any]:
        """Returns `method`, which halts at its end where `stops` is true of its object."""

        def halting(self_: Any, *arguments: Any) -> Any:
            result = method(self_, *arguments)
            if stops(self_):
                self._reached.set()
                assert self._released.wait(WAIT_S), "nobody let it go"
            return result

        return halting

    def wait(self) -> None:
        assert self._reached.wait(WAIT_S), "it never came there"

    def release(self) -> None:
        self._released.set()
