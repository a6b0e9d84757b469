"""Programs that this machine compiles for hosts that are reached by SSH."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.core.exit_codes import OK
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import start
from tests.support.processes import run_launcher
from tests.support.ssh_machines import NEEDED, WHY_NOT, Machines, machines

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not NEEDED, reason=WHY_NOT)]


@pytest.fixture
def two(tmp_path: Path, traces: Traces) -> Iterator[Machines]:
    with machines(tmp_path, ["alpha", "beta"], traces) as found:
        yield found
    traces.assert_nothing_left()


@pytest.mark.full
def test_hosts_load_the_programs_that_came_from_here(
    two: Machines, project: Path, traces: Traces
) -> None:
    cluster = two.cluster()
    words = ["plan", "-c", str(cluster), "job.yaml", "name=hot", "--compile", "--keep"]
    kept = run_launcher(project, traces.environment, *words)
    assert kept.returncode == OK, kept.stderr
    run = start(project, cluster, traces, "hot")
    assert run.wait() == OK, run.output
    for log in sorted((run.run_dir / "logs").glob("host-*.log")):
        assert "hot start: loaded 2 programs" in log.read_text(), log.read_text()
