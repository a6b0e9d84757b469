"""Copies a program's output from a pipe into its log, and rotates the log by size.

A separate program, `python -I -S log_writer.py LOG ROTATE_BYTES`, started by reaper.py with the
pipe as standard input; standard library only. It ends when no process can write to the pipe.

A program that printed into the log itself would need no process in between. But a print into a
full disk fails, and ends the program. A file that a process holds open cannot be rotated well
either: a rename does not reach its descriptor, and bytes between a copy and the truncation are
lost. Removing the head of a file (FALLOC_FL_COLLAPSE_RANGE) works on ext4 and XFS only. A pipe has
other risks:
- Unread bytes. The agent and the program may crash, but this process reads to the end of the pipe.
  If it is killed itself, the reaper, which also holds the reading end, starts another one. The
  pipe does not break, and only the bytes that it was writing are lost.
- A full pipe. This process waits only for the disk, and leaves out what a full disk does not take.
  The log records how much, and the owner receives one warning.

Its standard output is the reaper's: {"message": "warning", "text": why}.
"""

import itertools
import json
import os
import select
import signal
import sys
import time

ROTATE_BYTES = 64 << 20
KEPT = 5
CHUNK_BYTES = 1 << 18
GATHER_BYTES, GATHER_S = 1 << 16, 0.005
"""After a shorter read, a pause to gather more: frequent prints then rarely wake this process."""
POLL_INTERVAL_S = 1.0


class Relay:
    """Copies standard input into the log."""

    def __init__(self, log: str, rotate_bytes: int) -> None:
        self._log, self._rotate_bytes = log, rotate_bytes
        self._file: int | None = None
        self._reaper = os.getppid()
        self._left_out_bytes = 0
        self._has_warned = False

    def run(self) -> None:
        """Copies until the end of the pipe."""
        while chunk := self._read():
            self._take(chunk)
            if len(chunk) < GATHER_BYTES:
                time.sleep(GATHER_S)

    def _read(self) -> bytes:
        """Returns output; empty when no writer is left, or all are quiet and the reaper is gone."""
        while not select.select([0], [], [], POLL_INTERVAL_S)[0]:
            if os.getppid() != self._reaper:
                return b""
        return os.read(0, CHUNK_BYTES)

    def _take(self, chunk: bytes) -> None:
        """Writes a chunk. A rotated log ends with a whole line if lines fit in a chunk."""
        if self._is_full():
            end = chunk.find(b"\n") + 1 or len(chunk)
            self._write(chunk[:end])
            self._rotate()
            chunk = chunk[end:]
        self._write(chunk)

    def _is_full(self) -> bool:
        """Returns whether to rotate. The agent appends to the log too, so its size is queried."""
        try:
            return self._file is not None and os.fstat(self._file).st_size >= self._rotate_bytes
        except OSError:  # a stale file handle on network storage
            self._close()
            return False

    def _write(self, chunk: bytes) -> None:
        """Writes all of the chunk, or what the disk takes."""
        try:
            file = self._open()
            if self._left_out_bytes:
                os.write(file, f"\n[{self._left_out_bytes} bytes are missing here]\n".encode())
                self._left_out_bytes = 0
            while chunk:
                chunk = chunk[os.write(file, chunk) :]
        except OSError as error:
            self._left_out_bytes += len(chunk)
            self._close()  # reopening recovers from a stale file handle on network storage
            self._warn(error)

    def _open(self) -> int:
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._log, flags, 0o644)
        return self._file

    def _rotate(self) -> None:
        names = names_of(self._log)
        try:
            for newer, older in reversed(list(itertools.pairwise(names))):
                if os.path.exists(newer):
                    os.replace(newer, older)
        except OSError:
            return  # the log keeps growing, and the next chunk tries again
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            os.close(file)
        except OSError as error:  # of an earlier write; the descriptor is closed anyway
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        text = f"cannot write the program's output to {self._log}: {error.strerror}"
        try:
            os.write(1, json.dumps({"message": "warning", "text": text}).encode() + b"\n")
        except OSError:
            pass  # the owner is gone


def names_of(log: str) -> list[str]:
    """Returns the log and its rotated files that are kept, newest first."""
    return [log, *(f"{log}.{number}" for number in range(1, KEPT + 1))]


def main() -> None:
    """Runs the relay; ignores signals, so that a signal to all processes loses no last output."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    Relay(sys.argv[1], int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
