"""`checkpoint.every_minutes: auto` on two processes: all save the same steps, as often as pays."""

import itertools
import json
import signal
import statistics
import time

import pytest

from tests.support import gang
from tests.support.jobs import job_of, world_of
from trainer.contract.planning.save_interval import SaveStatistics
from trainer.contract.records import checkpoint_metadata

SAVES = 5
JOB = {"steps": 10**6, "checkpoint": {"every_minutes": "auto", "keep": 100}}
KNOWN = SaveStatistics(faults=20, host_s=2 * (20.1 * 12 - 60), blocked_s=0.6)
"""A fault every 12 s on two hosts, and a first cost that is too large: sqrt(2 * 0.6 * 12) = 3.8."""


def _events(folder, process=0):
    lines = (folder / f"events-{process}.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run that was stopped after its fifth checkpoint."""
    folder = tmp_path_factory.mktemp("auto")
    started = gang.start(job_of(**JOB), world_of(2, 1), folder, saves=KNOWN)
    ends = time.monotonic() + 200
    while sum(event["event"] == "checkpoint_saved" for event in _events(folder)) < SAVES:
        assert all(process.poll() is None for process in started), "a process ended"
        assert time.monotonic() < ends, "there are too few checkpoints"
        time.sleep(0.1)
    started[0].send_signal(signal.SIGTERM)
    ended = gang.wait(folder, started)
    assert ended.codes == [75, 75], "\n".join(ended.outputs)
    return ended


@pytest.mark.slow
def test_every_save_is_of_one_step_on_all_processes(ended):
    events = [_events(ended.run_dir, process) for process in range(2)]
    saved = [event["step"] for event in events[0] if event["event"] == "checkpoint_saved"]
    assert len(saved) > SAVES  # the last one is that of the stop
    assert sorted(checkpoint_metadata.steps(ended.run_dir / "checkpoints")) == saved
    for step in saved:  # written by both, and whole
        checkpoint_metadata.read(ended.run_dir / "checkpoints" / str(step))
    phases = [sum(event.get("name") == "save" for event in of_one) for of_one in events]
    assert phases == [2 * len(saved)] * 2


@pytest.mark.slow
def test_measured_cost_replaces_the_assumed_one_and_changes_the_interval(ended):
    first, *later = [e for e in _events(ended.run_dir) if e["event"] == "checkpoint_interval"]
    assert (first["saves"], first["cost_s"], first["faults"]) == (0, 0.6, 20)
    assert first["seconds"] == pytest.approx(3.8, rel=0.01)
    # The first save counts until there is another one.
    assert [event["saves"] for event in later] == [1, *range(1, len(later))]
    assert all(event["seconds"] != first["seconds"] for event in later)
    assert not [e for e in _events(ended.run_dir, 1) if e["event"] == "checkpoint_interval"]


@pytest.mark.slow
def test_saves_begin_at_the_interval_of_their_time(ended):
    """A save that is due during a write begins after it, when another interval may be current."""
    begins, lowest_s, current_s = [], 0.0, 0.0
    for event in _events(ended.run_dir):
        if event["event"] == "checkpoint_interval":
            current_s = event["seconds"]
            lowest_s = min(lowest_s, current_s)
        if (event["event"], event.get("name"), event.get("edge")) == ("phase", "save", "begin"):
            begins.append((event["time"], lowest_s))
            lowest_s = current_s
    gaps = [
        (after - began, interval_s)
        for (began, _), (after, interval_s) in itertools.pairwise(begins[:SAVES])
    ]
    # An interval is longer beside other processes.
    assert all(gap_s >= 0.75 * interval_s - 0.3 for gap_s, interval_s in gaps), gaps
    assert statistics.median(gap_s - interval_s for gap_s, interval_s in gaps) < 1.0, gaps
