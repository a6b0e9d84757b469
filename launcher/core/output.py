"""Standard output and standard error that never raise and never block: output cannot end a run.

Each stream has a thread that writes. The first error switches the stream off for good.
"""

import errno
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from launcher.core.errors import SlipwayError

PENDING_LIMIT = 1 << 20
"""Maximum number of characters that wait for a slow reader; beyond it, the oldest are dropped."""
STALLED_S = 30.0
"""Seconds without any read after which the final wait ends and the rest is dropped."""

OnFailure = Callable[[str], None]


class Output(io.TextIOBase):
    """A text stream in place of `sys.stdout` or `sys.stderr`.

    A character that the encoding lacks is written as an escape, such as `\\xe9`.
    """

    def __init__(self, stream: TextIO) -> None:
        self.failure = ""
        """The error that switched the stream off; "" while it is on."""
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._on_failure: OnFailure | None = None
        self._pending: deque[str] = deque()
        self._size = self._dropped = self._writes = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_settling = False

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The encoding of the underlying stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def fileno(self) -> int:
        """Returns the descriptor of the underlying stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Returns whether the underlying stream is a terminal."""
        return self._stream.isatty()

    def writable(self) -> bool:
        """Returns True."""
        return True

    def write(self, text: str) -> int:
        """Queues the text; a stream that is switched off drops it."""
        with self._changed:
            if text and not self.failure:
                self._add(text)
                self._changed.notify_all()
        return len(text)

    def report_to(self, on_failure: OnFailure) -> None:
        """Registers a callback for the error that switches the stream off.

        The stream's thread calls it once. An earlier error is reported immediately.
        """
        with self._changed:
            self._on_failure = on_failure
            failure = self.failure
        if failure:
            on_failure(failure)

    def settle(self) -> None:
        """Waits until everything is written, and ends the thread. Ctrl-C ends the wait."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._changed:
            self._is_settling = True
            self._changed.notify_all()
        try:
            self._wait_for(thread)
        except KeyboardInterrupt:
            self.failure = "interrupted"
        self._is_settling = False

    def _wait_for(self, thread: threading.Thread) -> None:
        while thread.is_alive():
            before = self._writes
            thread.join(STALLED_S)
            if thread.is_alive() and self._writes == before:
                self.failure = f"nothing was read for {STALLED_S:.0f} s"
                return

    def _add(self, text: str) -> None:
        self._pending.append(text)
        self._size += len(text)
        while self._size > PENDING_LIMIT and len(self._pending) > 1:
            dropped = len(self._pending.popleft())
            self._size -= dropped
            self._dropped += dropped
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_pending, daemon=True)
            self._thread.start()

    def _write_pending(self) -> None:
        try:
            while text := self._next():
                self._put(text)
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self._switch_off(str(error))

    def _next(self) -> str:
        """Waits for text and returns it; returns "" at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._is_settling)
            if self._dropped:
                text = f"\n[{self._dropped} characters were dropped: nothing read them]\n"
                self._dropped = 0
                return text
            if not self._pending:
                return ""
            text = self._pending.popleft()
            self._size -= len(text)
            return text

    def _put(self, text: str) -> None:
        data = text.encode(self.encoding, "backslashreplace")
        if self._descriptor is None:
            self._stream.write(data.decode(self.encoding))
            self._stream.flush()
            return
        while data:
            data = data[os.write(self._descriptor, data) :]
            self._writes += 1

    def _switch_off(self, failure: str) -> None:
        """Switches the stream off, so that the interpreter's flush at exit cannot fail either."""
        if self._descriptor is not None:
            replace_by_null([self._descriptor])
        with self._changed:
            self.failure = failure
            self._pending.clear()
            on_failure = self._on_failure
        if on_failure:
            on_failure(failure)


@contextmanager
def unfailing_output() -> Iterator[None]:
    """Replaces `sys.stdout` and `sys.stderr` by streams that never raise and never block."""
    before = sys.stdout, sys.stderr
    replaced = [Output(stream) for stream in before]
    sys.stdout, sys.stderr = replaced
    try:
        yield
    finally:
        for stream in replaced:
            stream.settle()
        sys.stdout, sys.stderr = before


def report_failures(on_failure: OnFailure) -> None:
    """Calls `on_failure` with each error that switches standard output or standard error off."""
    for stream in _outputs():
        stream.report_to(on_failure)


def prepare() -> None:
    """Opens closed standard descriptors, and escapes characters that an encoding lacks."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def reporting_output_errors() -> Iterator[None]:
    """Writes the rest of standard output at the end.

    Raises SlipwayError when standard output cannot be written, such as on a full disk, and exits
    with 1, in silence, when its reader has gone.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        descriptor = _descriptor(sys.stdout)
        if descriptor is None or _can_write(descriptor):
            raise  # an error of something else
        replace_by_null([descriptor])
        if error.errno == errno.EPIPE:
            raise SystemExit(1) from None
        raise SlipwayError(f"standard output cannot be written: {error.strerror}") from None


def replace_by_null(descriptors: list[int]) -> None:
    """Redirects descriptors to /dev/null, so that writes are dropped and reads return nothing."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in descriptors:
        os.dup2(nowhere, number)
    os.close(nowhere)


def _outputs() -> list[Output]:
    return [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, Output)]


def _can_write(descriptor: int) -> bool:
    """Writes an empty line, to see whether that fails."""
    try:
        return os.write(descriptor, b"\n") == 1
    except OSError:
        return False


def _descriptor(stream: TextIO) -> int | None:
    """Flushes the stream and returns its descriptor, or None when it has none."""
    try:
        stream.flush()
    except (OSError, ValueError):
        pass  # the first write raises the same error
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
