"""Compiled programs that hosts with caches of their own share, and that are damaged on the way."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.gang.program_archive import ProgramArchive
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage
from tests.support.fault_matrix import assert_finished, ends
from tests.support.launches import Launch
from tests.support.programs import node_of
from trainer.contract.storage.compiled_programs import EXECUTABLES, IN_RUN

pytestmark = [pytest.mark.faults, pytest.mark.full]
WORK = re.compile(r"^(\d+) traces, (\d+) compilations$", re.MULTILINE)


def test_programs_damaged_on_the_way_to_a_new_host_are_compiled(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """Host 2, with an empty disk, takes the place of host 1, which does not get beyond step 40."""
    disks = [tmp_path / f"disk-{host}" for host in range(3)]
    provider = sabotage(tmp_path, "step == 40 and time.sleep(999)").replace(
        "host_env: {1: {",
        f"host_env: {{0: {{XDG_CACHE_HOME: {disks[0]}}}, 2: {{XDG_CACHE_HOME: {disks[2]}}}, "
        f"1: {{XDG_CACHE_HOME: {disks[1]}, ",
    )
    run = start("faulty", provider, "spares: 1", "deadlines.step_s=300")
    run.wait_for_event("checkpoint_saved", step=30)
    folder = disks[1] / "slipway"
    wanted = {str(p.relative_to(folder)) for p in folder.glob(f"{EXECUTABLES}/*/[!.]*")}
    assert wanted

    def kept() -> set[str]:
        files = ProgramArchive(run.run_dir, 0).needed(1, on_cpu=True)
        return {file.name for file in files}

    run.wait_for(lambda: wanted <= kept())
    for path in (run.run_dir / IN_RUN).glob("[0-9a-f]*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    os.kill(node_of(traces, 1), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["lost"]
    _, second = WORK.findall(run.log(1))
    assert all(int(count) for count in second)
    (warning,) = [e["message"] for e in run.events() if e.get("category") == "programs"]
    assert "host-0001 are not shared" in warning and "its SHA-256 is another one" in warning
    assert not (run.run_dir / IN_RUN).exists(), "a run that has finished needs them no more"
