"""The share of time in which a process is busy, on a processor that it shares with others."""

import os
import subprocess
import sys
from contextlib import ExitStack

SPIN = "while True: pass"
SHARE_OF_A_SPINNING_THREAD = """
import threading, time
from trainer.telemetry.busy_share import BusyShare

def spin():
    while True:
        pass

threading.Thread(target=spin, daemon=True).start()
busy = BusyShare()
time.sleep(1)
print(busy.take())
"""


def test_a_process_that_gets_no_processor_is_busy() -> None:
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c"]
    with ExitStack() as rivals:
        for _ in range(8):
            rival = rivals.enter_context(subprocess.Popen([*command, SPIN]))
            rivals.callback(rival.kill)
        share = subprocess.check_output([*command, SHARE_OF_A_SPINNING_THREAD], text=True)
    assert float(share) > 0.5
