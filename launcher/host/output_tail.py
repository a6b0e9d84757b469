"""A program's output as lines for a display, bounded however much the program prints."""

import time
from collections import deque
from pathlib import Path

from launcher.host.log_reader import Lines, LogFile

READ_BYTES = 4 << 20
"""Bytes per call, so that a flood of output does not delay other work."""
LONGEST_LINE = 4000
MOST_LINES, WINDOW_S = 1000, 1.0
"""Maximum number of lines returned per window, and its seconds: more than a user can read."""
LEFT_OUT = "[{} lines are omitted here; they are in the log]"
TAIL_LINES = 30


class OutputLines:
    """The lines that are added to a log after construction, or those from its byte `begin` on."""

    def __init__(self, log: Path, begin: int | None = None) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._log, self._lines = LogFile(log, tail=0, begin=begin), Lines()
        self._waiting: deque[str] = deque()
        self._left_out = 0
        self._window_ends_at, self._lines_left = 0.0, MOST_LINES

    def read(self, last: bool) -> tuple[list[str], bool]:
        """Returns new lines, long ones in parts, and whether the log has no more now.

        If there are too many, the oldest are left out, and the first line gives their number.
        `last`: nothing will follow, so that nothing is held back.
        """
        lines, is_all = self._read_some()
        last = last and is_all
        if last:
            lines += self._lines.rest()
        self._take([part for line in lines for part in _parts(line)])
        return self._hand_over(last), is_all

    def close(self) -> None:
        self._log.close()

    def _read_some(self) -> tuple[list[str], bool]:
        lines: list[str] = []
        read_bytes = 0
        while read_bytes < READ_BYTES:
            chunk = self._log.read()
            if not chunk:
                return lines, True
            lines += self._lines.add(self._newest(chunk))
            read_bytes += len(chunk)
        return lines, False

    def _newest(self, chunk: bytes) -> bytes:
        """Returns the last MOST_LINES lines: earlier ones would be decoded only to be left out."""
        newlines = chunk.count(b"\n")
        if newlines <= MOST_LINES:
            return chunk
        begin = len(chunk)
        for _ in range(MOST_LINES + 1):
            begin = chunk.rindex(b"\n", 0, begin)
        self._left_out += newlines - MOST_LINES
        self._lines = Lines()
        return chunk[begin + 1 :]

    def _take(self, parts: list[str]) -> None:
        self.tail.extend(parts)
        self._waiting.extend(parts)
        while len(self._waiting) > MOST_LINES:
            self._waiting.popleft()
            self._left_out += 1

    def _hand_over(self, last: bool) -> list[str]:
        """Returns all waiting lines, or nothing until they fit in the window."""
        now = time.monotonic()
        if now >= self._window_ends_at:
            self._window_ends_at, self._lines_left = now + WINDOW_S, MOST_LINES
        if len(self._waiting) > self._lines_left and not last:
            return []
        self._lines_left -= len(self._waiting)
        lines = list(self._waiting)
        if self._left_out:
            lines.insert(0, LEFT_OUT.format(self._left_out))
        self._waiting.clear()
        self._left_out = 0
        return lines


def _parts(text: str) -> list[str]:
    return [text[i : i + LONGEST_LINE] for i in range(0, max(1, len(text)), LONGEST_LINE)]
