"""Several processes on a host: the loss of one of them, and of the host with all of them."""

import os
import signal
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import hold_after_copies
from tests.support.fault_matrix import JOB, curve_of, ends
from tests.support.launches import Launcher
from tests.support.programs import agents_of, node_of, trainer_of

pytestmark = [pytest.mark.faults, pytest.mark.full]

IN_MEMORY = 10
"""The newest step in memory while the run waits before step 15; there is none in storage."""
WORDS = ("steps=20", "eval=null", "checkpoint.in_memory_every_steps=5", "mesh.data=1",
         "mesh.fsdp=-1", "deadlines.step_s=300", "retries.standby_after_s=0")  # fmt: skip
TWO_DEVICES = "devices_per_host: 2"


def test_losing_a_process_or_its_host_keeps_losses_of_one_process_per_host(
    launch: Launcher, traces: Traces, tmp_path: Path
) -> None:
    (launch.folder / "job.yaml").write_text(JOB)
    few = launch.cluster_file("few")
    few.write_text(few.read_text().replace("devices_per_host: 1", TWO_DEVICES))
    unbroken = launch.on(few, "unbroken", WORDS)
    assert unbroken.wait() == 0, unbroken.output

    flag = tmp_path / "flag"
    provider, settled = hold_after_copies(tmp_path, IN_MEMORY, flag, processes=4)
    many = launch.cluster_file("many", provider, "processes_per_host: 2")
    many.write_text(many.read_text().replace("devices_per_host: 1", TWO_DEVICES))
    run = launch.on(many, "many", WORDS)
    run.wait_for(lambda: all(path.exists() for path in settled))
    assert [len(agents_of(traces, host)) for host in (0, 1)] == [2, 2]

    os.kill(trainer_of(traces, 3), signal.SIGKILL)
    assert run.wait_for_event("restored", attempt=2).items() >= {
        "step": IN_MEMORY, "source": "memory"
    }.items()  # fmt: skip
    run.wait_for_event("step", attempt=2)
    os.kill(node_of(traces, 1), signal.SIGKILL)
    assert run.wait_for_event("restored", attempt=3).items() >= {
        "step": IN_MEMORY, "source": "neighbor"
    }.items()  # fmt: skip
    flag.touch()
    assert run.wait() == 0, run.output

    assert curve_of(run) == curve_of(unbroken)
    killed, lost = (end["reason"] for end in ends(run))
    assert killed.startswith("process-0003 (host-0001) was killed by SIGKILL")
    assert "(host-0001) was lost" in lost
    logs = sorted(path.name for path in (run.run_dir / "logs").glob("*-*.log"))
    assert logs == [f"process-{process:04d}.log" for process in range(4)]
    traces.assert_nothing_left(timeout_s=5.0)
