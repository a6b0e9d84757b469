"""Takes what a program prints from a pipe into its log, and rotates the log by size.

A program of its own, `python -I -S log_writer.py LOG ROTATE_BYTES`, started by reaper.py with
the pipe as standard input; standard library only. It ends when nobody can write any more.

The log itself as the program's output would need nobody in between. But a print into a full disk
fails, and ends the program; and a file that a process holds open cannot be rotated well: a rename
does not reach its descriptor, what comes between a copy and the truncation is lost, and taking the
head out of a file (FALLOC_FL_COLLAPSE_RANGE) is for ext4 and XFS only. What a pipe risks instead:
- Bytes that nobody has read yet. This process shares no fate with the agent or the program: they
  may crash, it reads on to the end of the pipe. Should it be killed itself, the reaper, which holds
  the reading end too, starts another one: no broken pipe, and no loss but of what it had in hand.
- A full pipe. This process waits for nobody but the disk, and leaves out what a full one does not
  take; the log says how much, and the owner is warned, once.

Its standard output is the reaper's: {"warning": why}.
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
"""After less than so much, a moment for more: a program that prints often wakes this one rarely."""
LOOK_S = 1.0


class Relay:
    """From standard input into the log."""

    def __init__(self, log: str, rotate_bytes: int) -> None:
        self._log, self._rotate_bytes = log, rotate_bytes
        self._file: int | None = None
        self._reaper = os.getppid()
        self._left_out_bytes = 0
        self._has_warned = False

    def run(self) -> None:
        """Until the end of the pipe."""
        while chunk := self._read():
            self._take(chunk)
            if len(chunk) < GATHER_BYTES:
                time.sleep(GATHER_S)

    def _read(self) -> bytes:
        """Empty when no writer is left, or none that has said anything since the reaper is gone."""
        while not select.select([0], [], [], LOOK_S)[0]:
            if os.getppid() != self._reaper:
                return b""
        return os.read(0, CHUNK_BYTES)

    def _take(self, chunk: bytes) -> None:
        """A rotated log ends with a whole line, where lines are shorter than a chunk."""
        if self._is_full():
            end = chunk.find(b"\n") + 1 or len(chunk)
            self._write(chunk[:end])
            self._rotate()
            chunk = chunk[end:]
        self._write(chunk)

    def _is_full(self) -> bool:
        """The agent appends to the log too: its size is asked for."""
        try:
            return self._file is not None and os.fstat(self._file).st_size >= self._rotate_bytes
        except OSError:  # a stale file of a network's storage
            self._close()
            return False

    def _write(self, chunk: bytes) -> None:
        """All of it, or what the disk takes."""
        try:
            file = self._open()
            if self._left_out_bytes:
                os.write(file, f"\n[{self._left_out_bytes} bytes are left out here]\n".encode())
                self._left_out_bytes = 0
            while chunk:
                chunk = chunk[os.write(file, chunk) :]
        except OSError as error:
            self._left_out_bytes += len(chunk)
            self._close()  # a stale file of a network's storage heals by another open
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
            return  # it grows on, and the next chunk tries again
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            os.close(file)
        except OSError as error:  # of what was written before; the descriptor is gone all the same
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        text = f"the program's output cannot be written to {self._log}: {error.strerror}"
        try:
            os.write(1, json.dumps({"warning": text}).encode() + b"\n")
        except OSError:
            pass  # no owner any more


def names_of(log: str) -> list[str]:
    """The log and what is kept of it after rotations, the newest first."""
    return [log, *(f"{log}.{number}" for number in range(1, KEPT + 1))]


def main() -> None:
    """Whoever ends the program by a signal to all there is wants to read what it said at last."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    Relay(sys.argv[1], int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
