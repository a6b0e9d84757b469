"""`python -m trainer.ahead JOB_FILE PLAN_FILE PROCESS`: compiles what a process would run there.

It ends with the process that holds the other end of its standard input.
"""

import argparse
import os
import threading
import traceback
from contextlib import suppress
from pathlib import Path

from trainer.distributed.quick_exit import quick_exit


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line at idle priority; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.ahead", description=__doc__)
    parser.add_argument("job", type=Path, help="the job file")
    parser.add_argument("plan", type=Path, help="the plan of the smaller world")
    parser.add_argument("process", type=int, help="number of the process there")
    options = parser.parse_args(arguments)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    threading.Thread(target=_end_with_owner, daemon=True).start()
    # Imported late: the imports, too, must not take time from the training.
    from trainer.ahead.compile import compile_for

    counts = compile_for(options.job, options.plan, options.process)
    print(f"{counts.traces} traces, {counts.compilations} compilations", flush=True)
    return 0


def _end_with_owner() -> None:
    """Ends this process when its standard input closes."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    status = 1
    try:
        status = main()
    except Exception:
        traceback.print_exc()
    quick_exit(status)
