"""`launch rehearse` as a command: its text, and what it takes from an earlier run."""

import json
from pathlib import Path

import pytest

from launcher.core.states import RunState
from tests.support.cli import launch
from tests.support.launch_plans import JOB
from tests.support.run_folders import make_run

FAULTS = ["--faults", "host 1/h, hang 1/day", "--draws", "3", "--days", "1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job, and an earlier run with steps of two seconds."""
    (tmp_path / "small.yaml").write_text(JOB.replace("steps: 2", "steps: 20000"))
    with make_run(tmp_path, "before", steps=3) as run:
        run.set_state(RunState.FINISHED)
    with (tmp_path / "runs" / "before" / "events.jsonl").open("a") as events:
        for step in (1, 2, 3):
            times = {"time": 2e9 + 2.0 * step, "received": 2e9 + 2.0 * step}
            event = {"event": "step", "process": 0, "attempt": 1, "step": step, **times}
            events.write(json.dumps(event) + "\n")
    return tmp_path


def rehearse(folder: Path, *words: str) -> str:
    environment = {"XDG_STATE_HOME": str(folder / "state")}
    ended = launch(folder, "rehearse", "small.yaml", *FAULTS, *words, environment=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_text_has_figures_parts_and_notes(folder: Path) -> None:
    text = rehearse(folder, "--step-time", "2")
    for part in ("goodput", "days for all steps", "median", "repeated", "note: dollars:"):
        assert part in text


def test_times_are_those_of_the_run_that_like_names(folder: Path) -> None:
    found = json.loads(rehearse(folder, "--like", "before", "-o", "json"))
    assert found["timings"]["step_s"] == pytest.approx(2.0, abs=0.2)


def test_text_names_the_best_settings_of_trials(folder: Path) -> None:
    text = rehearse(folder, "--step-time", "2", "--tune", "--draws", "1")
    assert "best: checkpoint.every_steps=" in text


def test_unknown_earlier_run_is_an_error(folder: Path) -> None:
    ended = launch(folder, "rehearse", "small.yaml", "--like", "absent")
    assert ended.returncode == 2
    assert "absent" in ended.stderr
