"""`python contained.py SECONDS COMMAND ...`: runs a command and ends every process it left behind.

A changed program may not end its children, or may loop forever in a session of its own. The exit
code is 124 where the command takes longer than SECONDS.
"""

import ctypes
import os
import subprocess
import sys

import psutil

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""
FROM_SIGNALS, TIMED_OUT = 128, 124


def main(seconds: float, command: list[str]) -> int:
    """Returns the command's exit code."""
    # Orphans below this process become its children, wherever they moved.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        code = subprocess.run(command, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        code = TIMED_OUT
    while left := psutil.Process().children(recursive=True):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(left, timeout=5.0)
    return code if code >= 0 else FROM_SIGNALS - code


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(float(sys.argv[1]), sys.argv[2:]))
