"""Compiled programs of machines with disks of their own: one takes the place of another."""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.gang.program_archive import ProgramArchive
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sleepy_steps
from tests.support.launches import start
from tests.support.processes import run_launcher
from tests.support.programs import node_of
from tests.support.ssh_machines import NEEDED, WHY_NOT, Machines, machines
from trainer.contract.storage.compiled_programs import EXECUTABLES

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not NEEDED, reason=WHY_NOT)]
WORK = re.compile(r"^(\d+) traces, (\d+) compilations$", re.MULTILINE)


@pytest.fixture
def three(tmp_path: Path, traces: Traces) -> Iterator[Machines]:
    with machines(tmp_path, ["alpha", "beta", "gamma"], traces, own_caches=True) as found:
        yield found
    traces.assert_nothing_left()


def programs(disk: Path) -> set[str]:
    """The programs on a machine's disk."""
    folder = disk / "cache" / "slipway"
    return {str(path.relative_to(folder)) for path in folder.glob(f"{EXECUTABLES}/*/[!.]*")}


@pytest.mark.full
def test_machine_with_empty_disk_in_place_of_lost_one_compiles_nothing(
    three: Machines, project: Path, traces: Traces, tmp_path: Path
) -> None:
    cluster = three.cluster()
    cluster.write_text(cluster.read_text().replace("hosts: 3", "hosts: 2\nspares: 1", 1))
    # The code of the hosts is on their PYTHONPATH.
    shutil.copy(sleepy_steps(tmp_path) / "sitecustomize.py", project)
    words = [f"storage={tmp_path}", "checkpoint={every_steps: 20, keep: 2}", "steps=100000"]
    run = start(project, cluster, traces, "replaced", *words, "retries={failures: 3}")
    run.wait_for(lambda: list(three.disks[0].glob("runs/*/runs/replaced")))
    # The first machine drives the run: its folder is here only at the end.
    (run.run_dir,) = three.disks[0].glob("runs/*/runs/replaced")
    run.wait_for_event("checkpoint_saved")
    lost = programs(three.disks[1])
    assert lost and not programs(three.disks[2])

    def kept() -> set[str]:
        """What the launcher has of process 1."""
        files = ProgramArchive(run.run_dir, 0).needed(1, on_cpu=True)
        return {file.name for file in files}

    run.wait_for(lambda: lost <= kept())
    os.kill(node_of(traces, 1), signal.SIGKILL)
    run.wait_for_event("step", attempt=2)
    stopped = run_launcher(project, traces.environment, "stop", "replaced")
    assert "replaced was stopped at step" in stopped.stdout, stopped.stdout + stopped.stderr
    run.wait()
    _, second = WORK.findall(run.log(1))
    assert second == ("0", "0")
    assert lost <= programs(three.disks[2])
    assert [event for event in run.events() if event.get("category") == "programs"] == []
