"""What a trainer prints, and where its log lies: training goes on as if it printed nothing."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage
from tests.support.fault_matrix import STEPS, assert_finished, ends
from tests.support.launches import Launch
from tests.support.processes import wait_until

pytestmark = pytest.mark.slow
PRINT = "sys.stdout.buffer.write(%s), sys.stdout.flush()"
LONG_LINE, GARBAGE = b"x" * (64 << 10) + b"\n", bytes(range(256)) * 16 + b"\n"


def test_every_byte_of_long_lines_and_garbage_is_in_the_log(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    code = PRINT % r"b'%04d' % step + b'x' * (64 << 10) + b'\n' + bytes(range(256)) * 16 + b'\n'"
    run = start("faulty", sabotage(tmp_path, code))
    assert_finished(run, unbroken, traces)
    assert not ends(run)
    assert not [e for e in run.events() if e["event"] == "warning"]
    log = (run.run_dir / "logs" / "host-0001.log").read_bytes()
    whole = re.findall(rb"(\d{4})" + re.escape(LONG_LINE + GARBAGE), log)
    assert {int(step) for step in whole} == set(range(1, STEPS + 1))


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted, which needs root")
def test_a_full_disk_under_the_logs_costs_a_warning(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    run = start("faulty", sabotage(tmp_path, PRINT % "b'x' * 1000"))
    logs = run.run_dir / "logs"
    wait_until(logs.exists)
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "small", str(logs)]
    subprocess.run(mount, check=True)
    try:
        assert_finished(run, unbroken, traces)
        warnings = [e for e in run.events() if e["event"] == "warning" and e["category"] == "log"]
        full = [e["process"] for e in warnings if "No space left on device" in e["message"]]
        assert full.count(1) == 1
        assert len(full) == len(set(full)), "each host warns once"
        assert not ends(run)
    finally:
        subprocess.run(["umount", "--lazy", str(logs)], check=True)
