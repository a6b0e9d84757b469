"""Hosts that cannot be used: all told at once, each with what to do, and nothing started."""

from pathlib import Path

import pytest

from launcher.core.exit_codes import NO_CLUSTER
from tests.support.assert_no_leftovers import Traces
from tests.support.processes import run_launcher
from tests.support.ssh_machines import NEEDED, WHY_NOT, machines

WORDS = ("data.global_batch=20", "checkpoint=null")
pytestmark = pytest.mark.skipif(not NEEDED, reason=WHY_NOT)


@pytest.mark.slow
def test_all_unusable_hosts_are_reported_at_once(
    tmp_path: Path, project: Path, traces: Traces
) -> None:
    with machines(tmp_path, ["a", "b"], traces) as found:
        a, b = found.network.ip(0), found.network.ip(1)
        nobody = found.network.ip(100)
        found.configure("stranger", HostName=a, UserKnownHostsFile="/dev/null")
        found.configure("locked", HostName=b, IdentityFile=f"{tmp_path}/other_key")
        found.configure("dead", HostName=nobody)
        found.configure("asleep", HostName=a, Port="23")
        names = ["a", "stranger", "locked", "dead", "asleep"]
        cluster = found.cluster(names)
        run = run_launcher(project, traces.environment, "-c", str(cluster), "job.yaml", *WORDS)
    assert run.returncode == NO_CLUSTER, run.stderr
    assert "4 of 5 hosts cannot be used:" in run.stderr
    problems = {line.split(":")[0].strip(): line for line in run.stderr.splitlines()}
    assert "its host key is unknown or has changed" in problems["stranger"]
    assert "Set provider.user or provider.ssh_key" in problems["locked"]
    assert "Check that it is up, and reachable from here" in problems["dead"]
    assert "no SSH server listens on it" in problems["asleep"]
    assert not (project / "runs" / "small").exists()
    traces.assert_nothing_left(timeout_s=10.0)
    assert not list(found.disks[0].iterdir())
