"""The evidence that the kernel has ended a program for lack of memory."""

import subprocess
import sys
import time
from pathlib import Path

from launcher.host.memory_kills import POLL_INTERVAL_S, MemoryKills

JOINS = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); print(flush=True); input()"


def test_the_limit_of_a_program_that_has_ended_is_that_of_its_group(small_memory: Path) -> None:
    kills = MemoryKills()
    program = subprocess.Popen(
        [sys.executable, "-c", JOINS, str(small_memory / "cgroup.procs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert program.stdin and program.stdout
    program.stdout.readline()
    time.sleep(POLL_INTERVAL_S)
    kills.poll(program.pid)
    program.kill()
    while not is_zombie(program.pid):
        time.sleep(0.01)
    time.sleep(POLL_INTERVAL_S)
    kills.poll(program.pid)
    program.communicate()
    assert kills.figures().endswith("of 0.06 GiB in its control group")


def is_zombie(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].startswith("Z")
