"""Waits for the end of the process that drives a run; starts `launcher.notify.lost` if it died.

A program of its own, `python -I -S watcher_program.py FOLDER`; standard library only, so that it
takes little memory for as long as the run lasts. Standard input is a pipe whose other end only the
driving process has. DONE on it means that the run has ended in order; the end of the file without
it means that the process was killed.
"""

import os
import sys

DONE = b"done"


def main() -> None:
    if sys.stdin.buffer.read() != DONE:
        os.execv(sys.executable, [sys.executable, "-m", "launcher.notify.lost", sys.argv[1]])


if __name__ == "__main__":
    main()
