"""`python fork_server.py MODULE ...`: runs pytest in forks of this process, which has the modules.

The imports of pytest, and of JAX above all, take longer than most tests that notice a change.
Requests are JSON objects on standard input, one a line: {"arguments": of pytest, "timeout_s": s,
"output": file}. Each answer on standard output is pytest's exit code, TIMED_OUT after `timeout_s`.

A changed program may not end its children, or may loop forever in a session of its own. So the
server ends every process that a run left behind.
"""

import ctypes
import importlib
import json
import os
import sys
from pathlib import Path

import psutil
import pytest

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""
FROM_SIGNALS, TIMED_OUT = 128, 124


def main() -> None:
    """Serves until the end of standard input."""
    # Orphans below this process become its children, wherever they moved.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        print(run(**json.loads(line)), flush=True)


def run(arguments: list[str], timeout_s: float, output: str) -> int:
    """Returns the exit code of pytest, once all processes that it started have ended."""
    pid = os.fork()
    if not pid:
        _run_pytest(arguments, output)
    try:
        code = psutil.Process(pid).wait(timeout_s) or 0
    except psutil.TimeoutExpired:
        code = TIMED_OUT
    while left := psutil.Process().children(recursive=True):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        psutil.wait_procs(left, timeout=5.0)
    return code if code >= 0 else FROM_SIGNALS - code


def _run_pytest(arguments: list[str], output: str) -> None:
    """Ends this process, a fork of the server."""
    for number, name in enumerate([os.devnull, output, output]):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND), number)
    sys.path[0] = str(Path.cwd())  # not this file's folder
    code = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
