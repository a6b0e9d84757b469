"""A host whose clock is an hour off: who failed first, and where the time went, is told right."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.runs.goodput import goodput
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_matrix import assert_finished, ends
from tests.support.launches import Launch
from tests.support.programs import trainer_of
from tests.support.run_folders import event_of

pytestmark = pytest.mark.faults
AN_HOUR_BEHIND = "import time\nright = time.time\ntime.time = lambda: right() - 3600\n"


@pytest.mark.full
def test_an_hour_on_one_host_changes_nothing(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """By its clock the end of host 0, which only lost its peer, came an hour before the kill."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(AN_HOUR_BEHIND)
    run = start("faulty", f", host_env: {{0: {{PYTHONPATH: {tmp_path / 'clock'}}}}}")
    run.wait_for_event("step", step=35)
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert (ended["end_reason"], ended["process"]) == ("crash", 1)
    events = run.events()
    times = [e["time"] for e in events if e["event"] == "state"]
    behind = [e["time"] for e in events if e.get("process") == 0 and e["event"] == "step"]
    assert max(behind) < min(times), "its clock was off"
    spent = goodput(map(event_of, events))
    assert spent.wall_s == pytest.approx(max(times) - min(times), rel=0.01)
    assert spent.share
