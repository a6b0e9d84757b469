"""Reads a log that grows and is rotated: its last lines, and everything that is added to it.

New output goes to LOG. At some size LOG is renamed to LOG.1, LOG.1 to LOG.2, and so on. The reader
identifies an open file by its inode, so that a rename loses nothing and repeats nothing.
"""

import codecs
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 1 << 18
LONGEST_LINE = 1 << 20
"""Characters; a longer line arrives in pieces, so that memory never holds all of it."""


class LogFile:
    """The end of a log, from its last `tail` lines on (None: all of it), or from byte `begin`."""

    def __init__(self, path: Path, tail: int | None = None, begin: int | None = None) -> None:
        self._path = path
        self._file = _open_at_tail(path, tail) if begin is None else _open(path)
        if self._file and begin:
            self._file.seek(begin)

    def read(self) -> bytes:
        """Returns the next bytes, at most 256 KiB; empty when the log has nothing new."""
        while True:
            newer = self._newer()  # checked before the read: a renamed file no longer grows
            chunk = self._file.read(CHUNK_BYTES) if self._file else b""
            if newer is None:
                return chunk
            if chunk:
                newer.close()
                return chunk
            self.close()
            self._file = newer

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _newer(self) -> BinaryIO | None:
        """Returns the file that was begun after the current one, or None when none was.

        Searches from the newest to the oldest: a rename in the meantime only moves files to names
        not yet searched. A current file that was deleted is followed by the oldest that is left.
        """
        newer: BinaryIO | None = None
        for file in _newest_first(self._path):
            if self._file and os.path.sameopenfile(file.fileno(), self._file.fileno()):
                file.close()
                return newer
            if newer:
                newer.close()
            newer = file
        return newer


class Lines:
    """Assembles chunks of bytes into whole lines; replaces bytes that are not UTF-8."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._half = ""

    def add(self, chunk: bytes) -> list[str]:
        """Returns the lines that end in this chunk, and the available part of a very long one."""
        *lines, self._half = (self._half + self._decoder.decode(chunk)).split("\n")
        if len(self._half) > LONGEST_LINE:
            lines.append(self._half)
            self._half = ""
        return [line.rstrip("\r") for line in lines]

    def rest(self) -> list[str]:
        """Returns the last line when no newline ended it."""
        half, self._half = self._half + self._decoder.decode(b"", final=True), ""
        return [half] if half else []


def _newest_first(path: Path) -> Iterator[BinaryIO]:
    """Yields a log and its rotations, opened; the caller closes each."""
    if newest := _open(path):
        yield newest  # before the folder is listed: most callers stop here
    suffixes = (name.suffix[1:] for name in path.parent.glob(f"{path.name}.*"))
    for number in sorted(int(suffix) for suffix in suffixes if suffix.isdecimal()):
        if older := _open(Path(f"{path}.{number}")):
            yield older


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None  # it is being renamed at this moment


def _open_at_tail(path: Path, tail: int | None) -> BinaryIO | None:
    """Returns the file in which the last lines begin, positioned at their first byte."""
    left, is_end, oldest = tail, True, None
    for file in _newest_first(path):
        if oldest:
            oldest.close()
        oldest = file
        if left is None:
            continue
        if is_end and (last := _last_byte(file)):
            is_end = False
            left += last == b"\n"  # it ends the last line, and does not begin one
        left = _seek_back(file, left)
        if left == 0 and not is_end:
            break
    return oldest


def _last_byte(file: BinaryIO) -> bytes:
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    return file.read(1)


def _seek_back(file: BinaryIO, newlines: int) -> int:
    """Moves behind the `newlines`-th newline from the end. Returns how many are missing."""
    begin = file.seek(0, os.SEEK_END)
    while newlines > 0 and begin > 0:
        end, begin = begin, max(0, begin - CHUNK_BYTES)
        file.seek(begin)
        block = file.read(end - begin)
        if (found := block.count(b"\n")) >= newlines:
            index = len(block)
            for _ in range(newlines):
                index = block.rindex(b"\n", 0, index)
            begin, found = begin + index + 1, newlines
        newlines -= found
        if newlines == 0:
            break
    file.seek(begin)
    return newlines
