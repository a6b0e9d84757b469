"""`launch list`: every run once, with what its folder says of it."""

import json
import os
from pathlib import Path

import pytest

from launcher.core.states import RunState
from tests.support.cli import launch
from tests.support.run_folders import add_attempt, add_events, add_steps, make_run


@pytest.fixture(autouse=True)
def _nothing_noted_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def listed(folder: Path) -> list[dict]:
    result = launch(folder, "list", "-o", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_there_are_no_runs_yet(tmp_path: Path) -> None:
    assert listed(tmp_path) == []
    assert "no run in runs" in launch(tmp_path, "list").stdout


def test_a_run_is_shown_with_its_state_step_loss_and_cluster(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState.RUNNING)
        add_steps(run, 1, 2, 3)
        (found,) = listed(tmp_path)
        shown = launch(tmp_path, "list").stdout
    assert (found["name"], found["state"], found["alive"]) == ("small", "running", True)
    assert (found["attempt"], found["step"], found["steps"], found["loss"]) == (1, 3, 40, 4.7)
    assert found["cluster"]["name"] == "local"
    line = next(line for line in shown.splitlines() if line.startswith("small"))
    assert line.split()[:6] == ["small", "running", "1", "3/40", "4.7000", "local"]
    assert "folder" not in shown


@pytest.mark.parametrize("state", ["finished", "failed", "stopped", "interrupted"])
def test_a_run_that_ended_is_in_the_state_that_it_ended_in(tmp_path: Path, state: str) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState(state))
    (found,) = listed(tmp_path)
    assert (found["state"], found["alive"]) == (state, False)


def test_a_run_that_nobody_runs_any_more_is_lost(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState.RUNNING)
    (found,) = listed(tmp_path)
    assert (found["state"], found["alive"]) == ("lost", False)


def test_a_lost_run_has_the_exit_code_of_a_failed_job(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState.RUNNING)
    (found,) = listed(tmp_path)
    assert found["exit_code"] == 1


def test_the_newest_comes_first(tmp_path: Path) -> None:
    for age_s, name in enumerate(("new", "older", "oldest")):
        with make_run(tmp_path, name) as run:
            pass
        for path in run.folder.iterdir():
            os.utime(path, (1e9 - age_s, 1e9 - age_s))
    assert [run["name"] for run in listed(tmp_path)] == ["new", "older", "oldest"]


def test_runs_elsewhere_are_listed_with_their_folder(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "here").mkdir()
    make_run(tmp_path / "project", "far").close()
    make_run(tmp_path / "here", "near").close()
    shown = launch(tmp_path / "here", "list", environment={"COLUMNS": "300"}).stdout.splitlines()
    far, near = (next(line for line in shown if line.startswith(n)) for n in ("far", "near"))
    assert far.endswith(str(tmp_path / "project" / "runs" / "far"))
    assert str(tmp_path) not in near


def test_what_was_started_by_hand_or_is_torn_does_no_harm(tmp_path: Path) -> None:
    by_hand, torn = tmp_path / "runs" / "by-hand", tmp_path / "runs" / "torn"
    for folder in (by_hand, torn):
        folder.mkdir(parents=True)
        (folder / "job.yaml").touch()
    (torn / "state.json").write_text('{"state": "runn')
    (torn / "metrics.jsonl").write_text('{"step": 1, "loss": 3.5}\n{"step": 2, "lo')
    (tmp_path / "runs" / "no-run").mkdir()
    found = {run["name"]: run for run in listed(tmp_path)}
    assert found.keys() == {"by-hand", "torn"}
    assert found["by-hand"]["state"] == "by hand"
    assert (found["torn"]["step"], found["torn"]["loss"]) == (1, 3.5)


def test_a_program_that_writes_no_metrics_is_seen_by_its_events(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        add_events(run, {"event": "step", "process": 0, "step": 7, "loss": 1.5})
        add_events(run, *[{"event": "heartbeat", "process": 0}] * 50)
        (found,) = listed(tmp_path)
    assert (found["step"], found["loss"]) == (7, 1.5)


def cost_lines(folder: Path) -> list[list[str]]:
    shown = launch(folder, "list", "--cost").stdout
    return [line.split()[-2:] for line in sorted(shown.splitlines())]


def test_the_cost_of_each_run_and_their_sum_are_shown(tmp_path: Path) -> None:
    for name, hours, price in (("a", 1.0, 2.5), ("b", 0.5, 5.0)):
        with make_run(tmp_path, name) as run:
            add_attempt(run, hours, price)
    a, b, title, total = cost_lines(tmp_path)
    assert title == ["chip-hours", "cost"]
    assert (a, b, total) == (["8.00", "$20.00"], ["4.00", "$20.00"], ["chip-hours,", "$40.00"])


def test_a_cost_that_is_not_known_is_left_out(tmp_path: Path) -> None:
    with make_run(tmp_path, "a") as run:
        add_attempt(run, 1.0)
    a, _, total = cost_lines(tmp_path)
    assert a[1] == "8.00"
    assert total == ["8.00", "chip-hours"]


def test_a_cost_of_which_only_a_part_is_known_is_shown_as_more(tmp_path: Path) -> None:
    for name, price in (("a", 2.5), ("b", None)):
        with make_run(tmp_path, name) as run:
            add_attempt(run, 1.0, price)
    assert cost_lines(tmp_path)[-1] == [">", "$20.00"]


def test_simulated_runs_are_not_in_the_sum(tmp_path: Path) -> None:
    with make_run(tmp_path, "a") as run:
        add_attempt(run, 1.0, 2.5)
    state = run.folder / "state.json"
    recorded = json.loads(state.read_text())
    recorded["cluster"]["simulate"] = True
    state.write_text(json.dumps(recorded))
    shown = launch(tmp_path, "list", "--cost").stdout
    assert "$20.00" in shown
    assert "total: 0.00 chip-hours, without 1 simulated run" in shown
