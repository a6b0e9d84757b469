"""`launch compare`: what it prints and writes, of which runs, and which use is wrong."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from launcher.core.states import RunState
from launcher.runs.directory import RunDir
from tests.support.cli import ROOT, launch
from tests.support.run_folders import add_attempt, add_events, make_run

SCHEMA = ROOT / "docs" / "schemas" / "compare.schema.json"
STARTED = {"event": "started", "process": 0, "versions": {"jax": "1.0"}, "code": "a" * 64}


def line_of(step: int, loss: float, attempt: int = 1) -> dict[str, Any]:
    digest = f"{step * 2654435761 % 2**32:08x}"
    return {"step": step, "loss": loss, "examples": digest, "tokens": 64 * step, "attempt": attempt}


def add_lines(run: RunDir, lines: Iterable[dict[str, Any]]) -> None:
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def losses(steps: int, more: float = 0.0) -> list[float]:
    """A falling curve; `more` is added to it."""
    return [3.0 / step + more for step in range(1, steps + 1)]


def make_finished(folder: Path, name: str, values: list[float]) -> Path:
    with make_run(folder, name, steps=len(values)) as run:
        run.set_state(RunState.RUNNING)
        add_events(run, STARTED)
        add_lines(run, (line_of(step, loss) for step, loss in enumerate(values, 1)))
        run.set_state(RunState.FINISHED)
    return run.folder


def compared(folder: Path, *words: str) -> dict[str, Any]:
    done = launch(folder, "compare", *words, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(found)
    return found


def test_verdict_is_the_first_line(tmp_path: Path) -> None:
    make_finished(tmp_path, "first", losses(40))
    make_finished(tmp_path, "second", losses(40))
    done = launch(tmp_path, "compare", "first", "second")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == (
        "second against first: same run: same job, code, libraries, cluster and plan; "
        "all 40 common losses equal bit for bit"
    )


def test_each_run_is_compared_with_the_first_one(tmp_path: Path) -> None:
    make_finished(tmp_path, "first", losses(40))
    make_finished(tmp_path, "second", losses(40, 0.5))
    make_finished(tmp_path, "third", losses(40, -0.5))
    found = compared(tmp_path, "first", "second", "third")
    assert [run["name"] for run in found["runs"]] == ["first", "second", "third"]
    means = {pair["name"]: pair["losses"]["all_steps"]["mean"] for pair in found["pairs"]}
    assert means == pytest.approx({"second": 0.5, "third": -0.5})


def test_differences_and_figures_are_printed(tmp_path: Path) -> None:
    make_finished(tmp_path, "first", losses(40))
    other = make_finished(tmp_path, "second", losses(40, 0.5)) / "job.yaml"
    other.write_text(other.read_text().replace("seed: 0", "seed: 1"))
    lines = launch(tmp_path, "compare", "first", "second").stdout.splitlines()
    assert ["job", "seed", "0", "1"] in [line.split() for line in lines]
    assert lines[-1].split()[:5] == ["second", "finished", "40/40", "0.5750", "2,560"]


def test_last_attempt_of_a_repeated_step_counts(tmp_path: Path) -> None:
    make_finished(tmp_path, "first", losses(40))
    with make_run(tmp_path, "second", steps=40) as run:
        add_events(run, STARTED)
        curve = list(enumerate(losses(40), 1))
        add_lines(run, (line_of(step, loss + 1) for step, loss in curve[:30]))
        add_lines(run, (line_of(step, loss, attempt=2) for step, loss in curve))
        run.set_state(RunState.FINISHED)
    assert compared(tmp_path, "first", "second")["pairs"][0]["verdict"]["kind"] == "same_run"


def test_steps_that_metrics_leave_out_come_from_the_events(tmp_path: Path) -> None:
    make_finished(tmp_path, "first", losses(40))
    values = losses(40)
    values[22] += 0.5
    with make_run(tmp_path, "second", steps=40) as run:
        lines = [line_of(step, loss) for step, loss in enumerate(values, 1)]
        add_lines(run, lines[9::10])
        add_events(run, *({"event": "step", "process": 0, **line} for line in lines))
        add_events(run, {"event": "finished", "process": 0, "step": 40, "loss": 9.0})
        run.set_state(RunState.FINISHED)
    (pair,) = compared(tmp_path, "first", "second")["pairs"]
    assert pair["examples"]["common_steps"] == 40
    assert pair["losses"]["first_different_step"] == 23


def test_live_run_is_compared_so_far(tmp_path: Path) -> None:
    make_finished(tmp_path, "first", losses(40))
    with make_run(tmp_path, "second", steps=40) as run:
        run.set_state(RunState.RUNNING)
        add_lines(run, (line_of(step, loss) for step, loss in enumerate(losses(7), 1)))
        with (run.folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 8, "lo')
        done = launch(tmp_path, "compare", "first", "second")
    assert "second against first, so far: " in done.stdout
    assert "all 7 common losses equal bit for bit" in done.stdout


def test_run_without_any_step_has_a_verdict(tmp_path: Path) -> None:
    make_finished(tmp_path, "first", losses(40))
    with make_run(tmp_path, "second") as run:
        run.set_state(RunState.FAILED, reason="no hosts")
    found = compared(tmp_path, "first", "second")
    assert found["pairs"][0]["verdict"]["kind"] == "no_common_step"
    assert found["pairs"][0]["not_recorded"] == ["code", "libraries"]


def test_damaged_files_are_not_compared(tmp_path: Path) -> None:
    make_finished(tmp_path, "first", losses(40))
    folder = make_finished(tmp_path, "second", losses(40))
    for name in ("job.yaml", "plans/0001.json", "metrics.jsonl"):
        (folder / name).write_text("{damaged")
    (pair,) = compared(tmp_path, "first", "second")["pairs"]
    assert pair["not_recorded"] == ["job", "cluster", "plan"]
    assert pair["verdict"]["kind"] == "no_common_step"


def test_runs_of_one_name_are_shown_by_their_folders(tmp_path: Path) -> None:
    here = make_finished(tmp_path, "small", losses(40))
    (tmp_path / "elsewhere").mkdir()
    there = tmp_path / "elsewhere" / "small"
    shutil.copytree(here, there)
    done = launch(tmp_path, "compare", str(here), str(there))
    assert done.stdout.startswith(f"{there} against {here}: same run")


def test_report_has_the_verdict_and_both_curves(tmp_path: Path) -> None:
    make_finished(tmp_path, "first", losses(40))
    make_finished(tmp_path, "second", losses(40))
    done = launch(tmp_path, "compare", "first", "second", "--report", "both.html")
    assert done.stdout.splitlines()[-1] == "report: both.html"
    html = (tmp_path / "both.html").read_text()
    assert "second against first: same run" in html
    assert '"label":"first: training"' in html and '"label":"second: training"' in html


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["first"], "launch compare: name two or more different runs"),
        (["first", "first"], "launch compare: name two or more different runs"),
        (["first", "runs/first"], "launch compare: name two or more different runs"),
        (["absent", "first", "missing"], "missing: no run of this name in runs"),
        (["first", "second", "--report", "notes.html"], "Name another file: --report FILE"),
        (["first", "second", "--report", "no/page.html"], "there is no folder no. Create it"),
    ],
)
def test_wrong_use_is_an_error(tmp_path: Path, words: list[str], message: str) -> None:
    make_finished(tmp_path, "first", losses(3))
    make_finished(tmp_path, "second", losses(3))
    (tmp_path / "notes.html").write_text("my notes")
    done = launch(tmp_path, "compare", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert (tmp_path / "notes.html").read_text() == "my notes"


def test_the_cost_of_each_run_is_compared(tmp_path: Path) -> None:
    for name, price in (("cheap", 2.5), ("free", None)):
        with make_run(tmp_path, name) as run:
            add_attempt(run, hours=1.0, price=price)
    runs = compared(tmp_path, "cheap", "free")["runs"]
    assert [(one["chip_hours"], one["dollars"]) for one in runs] == [(8.0, 20.0), (8.0, None)]
    lines = launch(tmp_path, "compare", "cheap", "free").stdout.splitlines()
    assert any(line.endswith("$20.00") for line in lines)
