"""What Ctrl-C, SIGTERM, a closed terminal and Ctrl-Z do to a command."""

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
    """The first signal interrupts, or, while something can be stopped in order, only asks to.

    A second one ends this process at once; what is left is ended by the reapers, which notice that
    it is gone. A terminal that closes may say so twice: SIGHUP never counts as a second one.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first one; None: there was none yet."""
        self._in_order = False
        self._terminals = [number for number in (0, 1, 2) if os.isatty(number)]
        """Found now: a terminal that has hung up does not look like one."""

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
            replace_by_null(self._terminals)  # what is still printed must not fail
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


@contextmanager
def refusing_suspension() -> Iterator[None]:
    """Within it Ctrl-Z prints why the command is not suspended.

    Nor does output stop it while it is in the background of a terminal with `tostop`.
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
