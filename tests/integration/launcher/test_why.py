"""`launch why`: the cause of a bad end comes first, and the parts are those of the goodput."""

import json
from pathlib import Path

import pytest

from launcher.core.states import RunState
from launcher.runs.directory import RunDir
from tests.support.cli import launch, status_as_json
from tests.support.run_builders import RunEvents
from tests.support.run_folders import add_events, add_log, add_steps, make_run


def write_events(run: RunDir, events: RunEvents) -> None:
    """Writes events with their own times, instead of those that the run has recorded."""
    lines = (json.dumps(line) + "\n" for line in events.lines)
    (run.folder / "events.jsonl").write_text("".join(lines))


def finished(folder: Path, events: RunEvents) -> None:
    with make_run(folder) as run:
        add_steps(run, *range(1, 13))
        run.set_state(RunState.FINISHED)
    write_events(run, events)


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    """A run that crashed after ten steps and then finished."""
    run = RunEvents().training().steps(1, 10, 0.7, data_wait_s=0.1).ended("crash")
    run.state("backing_off").after(3).next_attempt().training().steps(6, 12).finished()
    finished(tmp_path, run)
    return tmp_path


def test_parts_add_up_to_the_wall_time_of_the_status(resumed: Path) -> None:
    why = json.loads(launch(resumed, "why", "small", "-o", "json").stdout)
    goodput = status_as_json(resumed)["goodput"]
    assert why["wall_s"] == pytest.approx(goodput["wall_s"])
    assert sum(part["seconds"] for part in why["parts"]) == pytest.approx(goodput["wall_s"])
    assert sum(part["share"] for part in why["parts"]) == pytest.approx(1.0)
    steps = [part["seconds"] for part in why["parts"] if part["kind"] == "steps"]
    assert steps == [pytest.approx(goodput["parts_s"]["steps"])]


def test_largest_loss_is_the_first_line_with_its_share(resumed: Path) -> None:
    done = launch(resumed, "why", "small")
    assert (done.returncode, done.stderr) == (0, "")
    first, title, loss, *_ = done.stdout.splitlines()
    assert first == "small finished: 12/40 steps"
    assert title.startswith("where its time went: ")
    assert " %  restarts: attempts that failed: 1 x crash; " in loss


def test_cause_of_a_failed_run_comes_before_its_time(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        add_log(run, 0, b"a line of host 0\n")
        add_log(run, 1, b"Traceback (most recent call last):\nValueError: \x1b[31mno such\n")
        ended = {"event": "attempt_ended", "end_reason": "crash", "reason": "host-0001 exited"}
        add_events(run, {"event": "error", "message": "ValueError: no"}, ended | {"process": 1})
        run.set_state(RunState.FAILED, reason="host-0001 exited with code 1")
    done = launch(tmp_path, "why", "small")
    order = ["small failed", "host-0001 exited with code 1", "  ValueError: no"]
    order += ["last output of host-0001", "ValueError: [31mno such", "last output of host-0000"]
    order += ["  a line of host 0", "where its time went"]
    places = [done.stdout.find(text) for text in order]
    assert places == sorted(places)
    assert -1 not in places
    assert "\x1b" not in done.stdout


def test_long_output_is_cut_to_its_end(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        for host in range(6):
            add_log(run, host, b"".join(b"line %d\n" % number for number in range(500)))
        run.set_state(RunState.FAILED, reason="host-0001 exited with code 1")
    text = launch(tmp_path, "why", "small").stdout
    assert len(text.splitlines()) < 80
    assert "line 499" in text
    assert "launch logs small" in text


def test_run_that_has_just_begun_has_an_answer(tmp_path: Path) -> None:
    with make_run(tmp_path):
        done = launch(tmp_path, "why", "small")
    assert done.returncode == 0
    assert "small is running: provisioning" in done.stdout


def test_unknown_run_is_an_error(tmp_path: Path) -> None:
    done = launch(tmp_path, "why", "absent")
    assert (done.returncode, done.stdout) == (2, "")
    assert "absent: no run of this name" in done.stderr
