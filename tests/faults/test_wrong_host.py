"""A host that computes wrong: the next attempt leaves it out."""

from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import flip_checked_gradient
from tests.support.fault_matrix import JOB, assert_finished, ends
from tests.support.launches import Launcher

pytestmark = pytest.mark.faults
WRONG, STEP = 1, 21
WORDS = ("integrity.replay_every=10", "retries.standby_after_s=null")


def test_a_host_that_computes_wrong_is_replaced_for_good(
    launch: Launcher, unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    path, faulty = flip_checked_gradient(tmp_path, STEP, "layers.attention.query.kernel")
    variables = {n: {"PYTHONPATH": str(path), **(faulty if n == WRONG else {})} for n in range(4)}
    (launch.folder / "job.yaml").write_text(JOB)
    cluster = launch.cluster_file("faulty", f", host_env: {variables}", "spares: 1", hosts=3)
    run = launch.on(cluster, "faulty", WORDS)
    assert_finished(run, unbroken, traces)
    assert [(end["end_reason"], end["step"]) for end in ends(run)] == [("wrong_host", STEP - 1)]
    (excluded,) = [event for event in run.events() if event["event"] == "host_excluded"]
    assert (excluded["process"], excluded["reason"]) == (WRONG, "host-0001 computed wrong")
