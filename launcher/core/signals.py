"""The effect of Ctrl-C, SIGTERM, a closed terminal and Ctrl-Z on a command."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from launcher.core.exit_codes import INTERRUPTED
from launcher.core.output import replace_by_null

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NOT_SUSPENDED = (
    "launch cannot be suspended, because its hosts would end: Ctrl-C stops the run. "
    "To have the terminal free, start with --detach"
)


class Interrupts:
    """Interrupts the command at the first signal, or only sets `asked` in `stopping_in_order`.

    A second signal ends this process immediately. The reapers notice that it is gone and end the
    rest. A closing terminal may send SIGHUP twice, so SIGHUP never counts as a second signal.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first signal; None before it arrives."""
        self._in_order = False
        self._terminals = [number for number in (0, 1, 2) if os.isatty(number)]
        """Descriptors of terminals, found now: `isatty` is False after a terminal has hung up."""

    @property
    def asked(self) -> bool:
        """Whether the command should end."""
        return self.signal is not None

    @contextmanager
    def stopping_in_order(self) -> Iterator[None]:
        """Keeps the first signal from interrupting code that polls `asked` itself."""
        self._in_order = True
        try:
            yield
        finally:
            self._in_order = False

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            replace_by_null(self._terminals)  # later output must not fail
        if self.asked:
            if number != signal.SIGHUP:
                os._exit(INTERRUPTED)
            return
        self.signal = number
        if not self._in_order:
            raise KeyboardInterrupt


@contextmanager
def ending_on_signals() -> Iterator[Interrupts]:
    """Makes a closed terminal and SIGTERM end a command as Ctrl-C does."""
    interrupts = Interrupts()
    before = {number: signal.signal(number, interrupts.on_signal) for number in SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def refusing_suspension() -> Iterator[None]:
    """Makes Ctrl-Z print why the command is not suspended.

    Output does not stop the command either, in the background of a terminal with `tostop`.
    """
    handlers = {signal.SIGTSTP: _refuse_suspension, signal.SIGTTOU: signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _refuse_suspension(_number: int, _frame: FrameType | None) -> None:
    print(NOT_SUSPENDED, file=sys.stderr)
