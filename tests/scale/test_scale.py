"""Many hosts on one machine: all of them up, met and heard of in time, and nothing left."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.load_many_nodes import MOST_NODES
from tests.support.processes import LAUNCH_TIMEOUT_S
from tests.support.sampling import sampled
from trainer.contract.protocol.process_names import host_name

pytestmark = pytest.mark.scale
ROOT = Path(__file__).parents[2]
DEADLINE_S = 180.0
"""From the start of the first Ray node until every host has met the others and made a step."""


@pytest.fixture
def traces() -> Iterator[Traces]:
    with Traces() as traces:
        yield traces


@pytest.mark.parametrize("hosts", sampled({str(n): n for n in (MOST_NODES, 64)}, ("64",)))
def test_many_hosts_are_heard_of_within_three_minutes(
    hosts: int, tmp_path: Path, traces: Traces
) -> None:
    """Sixteen on Ray nodes of their own, as in a run; 64 agents, several on each node."""
    said = report("real", hosts, tmp_path, traces)
    reported_s = {int(process): seconds for process, seconds in said["reported_s"].items()}
    late = [host_name(p) for p in range(hosts) if reported_s.get(p, math.inf) > DEADLINE_S]
    assert not late, f"not heard of within {DEADLINE_S:.0f} s: {', '.join(late)}"
    assert said["met"] == {str(process): hosts for process in range(hosts)}
    assert said["warnings"] == []
    assert said["outcome"] == "all hosts finished"
    traces.assert_nothing_left()


def test_a_thousand_hosts_are_all_listened_to(tmp_path: Path, traces: Traces) -> None:
    """Agents that only send events: none is taken for silent because others are heard first."""
    said = report("fed", 1024, tmp_path, traces)
    assert said["outcome"] == "all hosts finished"
    assert len(said["reported_s"]) == 1024
    traces.assert_nothing_left()


def report(kind: str, hosts: int, folder: Path, traces: Traces) -> dict[str, Any]:
    """What `tests.scale.report` says."""
    words = [kind, str(hosts), str(DEADLINE_S), str(folder)]
    command = [sys.executable, "-m", "tests.scale.report", *words]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=traces.environment,
        capture_output=True,
        text=True,
        timeout=LAUNCH_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
