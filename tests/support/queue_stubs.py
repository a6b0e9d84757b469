"""A queue's worker whose runs do nothing, so that hundreds of them start in a minute.

    python -m tests.support.queue_stubs QUEUE_FOLDER

All is real, the process of each run too, except for the program: in place of Ray and a program, the
driver adds the run's name to `started` beside the runs, and finishes.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from launcher.commands.queue_worker import serve
from launcher.core.background import leave_parent
from launcher.core.errors import SlipwayError
from launcher.core.files import is_locked
from launcher.core.states import RunState
from launcher.executors import driver
from launcher.executors.driver import DriverOrder
from launcher.queue.folder import Queue
from launcher.runs.folder import RunFolderError
from tests.support.processes import wait_until

MODULE = "tests.support.queue_stubs"
LONGEST_S = POLL_INTERVAL_S = 0.03
HIGHEST_DESCRIPTOR = 256


def kill_worker(queue: Queue) -> bool:
    """Ends the worker of a queue with SIGKILL; returns whether there was one."""
    path = queue.folder / "worker"
    if not is_locked(path) or not (text := path.read_text()):
        return False
    os.kill(int(text), signal.SIGKILL)
    wait_until(lambda: not is_locked(path), 10)
    return True


def start(order: DriverOrder) -> None:
    """Starts a driver as `driver.start` does: returns once it has the run, or raises."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.closerange(3, writing)
        os.closerange(writing + 1, HIGHEST_DESCRIPTOR)
        leave_parent()
        try:
            _drive(order, writing)
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        if refusal := answer.read():
            raise RunFolderError(refusal)


def _drive(order: DriverOrder, answer: int) -> None:
    time.sleep(random.uniform(0, LONGEST_S))  # the worker may be killed meanwhile
    try:
        run = order.open()
    except SlipwayError as error:
        os.write(answer, str(error).encode())
        return
    with run, (run.folder.parent / "started").open("a") as started:
        os.close(answer)
        started.write(f"{run.folder.name}\n")
        started.flush()
        run.set_state(RunState.RUNNING)
        time.sleep(random.uniform(0, LONGEST_S))
        run.set_state(RunState.FINISHED)


if __name__ == "__main__":
    driver.start = start
    sys.exit(serve(Path(sys.argv[1]), POLL_INTERVAL_S))
