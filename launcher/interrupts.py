"""What Ctrl-C, SIGTERM and a closed terminal do to a command."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from launcher.exits import INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """The first signal interrupts, or, while something can be stopped in order, only asks to.

    A second one ends this process at once; what is left is ended by the reapers, which notice that
    it is gone. A terminal that closes may say so twice: SIGHUP never counts as a second one.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first one; None: there was none yet."""
        self._in_order = False

    @property
    def asked(self) -> bool:
        """Whether the command should end."""
        return self.signal is not None

    @contextmanager
    def stopping_in_order(self) -> Iterator[None]:
        """Around what looks at `asked` itself."""
        self._in_order = True
        try:
            yield
        finally:
            self._in_order = False

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _forget_terminal()
        if self.asked:
            if number != signal.SIGHUP:
                os._exit(INTERRUPTED)
            return
        self.signal = number
        if not self._in_order:
            raise KeyboardInterrupt


@contextmanager
def ending_on_signals() -> Iterator[Interrupts]:
    """A closed terminal and SIGTERM end a command as Ctrl-C does."""
    interrupts = Interrupts()
    before = {number: signal.signal(number, interrupts.on_signal) for number in SIGNALS}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _forget_terminal() -> None:
    """What is still printed must not fail: the run is about to be saved."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        if os.isatty(number) or not _is_open(number):
            os.dup2(nowhere, number)
    os.close(nowhere)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
