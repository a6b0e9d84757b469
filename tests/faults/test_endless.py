"""Programs and hosts that end again and again: the run ends too, with what repeated."""

from pathlib import Path

import psutil
import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch, Launcher

pytestmark = pytest.mark.faults
GIB = 1 << 30
JOB = """\
name: any
command: [python, -c, {code!r}]
retries: {{failures: {failures}}}
"""


def launched(launch: Launcher, code: str, failures: int, provider: str = "") -> Launch:
    (launch.folder / "job.yaml").write_text(JOB.format(code=code, failures=failures))
    return launch.on(launch.cluster_file("one", provider, hosts=1), "any")


def attempts(run: Launch) -> list[str]:
    return [e["end_reason"] for e in run.events() if e["event"] == "attempt_ended"]


def test_a_program_that_always_exits_with_75_ends_the_run(launch: Launcher, traces: Traces) -> None:
    run = launched(launch, "import sys; sys.exit(75)", failures=3)
    assert run.wait() == 1
    assert attempts(run) == ["preempted"] * 3
    assert "host-0000 exited with code 75" in run.reason
    assert "3 times in a row, each time before its first step: deterministic" in run.reason
    traces.assert_nothing_left(timeout_s=5.0)


def test_a_kill_by_rays_memory_monitor_is_a_failure_with_the_figures(
    launch: Launcher, traces: Traces
) -> None:
    """On a node whose monitor is on, as on a cluster that is not Slipway's own."""
    memory = psutil.virtual_memory()
    if memory.available < 10 * GIB:
        pytest.skip("needs 10 GiB of memory")
    threshold = 1 - (memory.available - 3 * GIB) / memory.total
    monitor = f"RAY_memory_monitor_refresh_ms: '100', RAY_memory_usage_threshold: '{threshold:.3f}'"
    code = "held = b'x' * (6 << 30); import time; time.sleep(99)"
    run = launched(launch, code, 0, f", host_env: {{0: {{{monitor}}}}}")
    assert run.wait() == 1
    assert attempts(run) == ["crash"]
    assert "host-0000 failed: out of memory: Ray's memory monitor killed the agent" in run.reason
    assert "of memory were used, its threshold is" in run.reason
    traces.assert_nothing_left(timeout_s=5.0)


def test_out_of_memory_kill_is_a_failure_with_figures(
    launch: Launcher, traces: Traces, small_memory: Path
) -> None:
    join = f"import os, time; open('{small_memory}/cgroup.procs', 'w').write(str(os.getpid()))"
    grow = "held = [(b'x' * (5 << 20), time.sleep(0.1)) for _ in range(100)]"
    run = launched(launch, f"{join}; {grow}", failures=0)
    assert run.wait() == 1
    assert attempts(run) == ["crash"]
    assert "by the kernel, out of memory: 0.06 GiB of 0.06 GiB in its control group" in run.reason
    traces.assert_nothing_left(timeout_s=5.0)
