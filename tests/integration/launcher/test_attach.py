"""`launch attach`: a run of another process, shown from its folder until it ends."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.results import AttemptResult
from launcher.core.states import EndReason, RunState
from launcher.runs.directory import RunDir
from launcher.runs.state_file import Position
from tests.support.cli import ROOT, launch
from tests.support.launch_plans import small_launch
from tests.support.run_builders import step
from tests.support.run_folders import add_events, add_log, make_run

END_TIMEOUT_S = 60.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    with make_run(tmp_path) as run:
        yield run


class Attached:
    """`launch attach small` as a process, once it shows something."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launcher", "attach", "small", *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout
        self.shown = self.process.stdout.readline()

    def end(self) -> str:
        """All that it showed."""
        return self.shown + self.process.communicate(timeout=END_TIMEOUT_S)[0]


@pytest.fixture
def attached(run: RunDir, tmp_path: Path) -> Iterator[Attached]:
    attached = Attached(tmp_path)
    yield attached
    attached.process.kill()
    attached.process.communicate()


def test_it_shows_what_happens_and_what_is_printed_until_the_end(
    run: RunDir, attached: Attached
) -> None:
    run.set_state(RunState.RUNNING)
    add_log(run, 0, b"hello from host 0\n")
    add_events(run, step(1), step(40), {"event": "warning", "process": 0, "message": "mind"})
    add_events(run, {"event": "finished", "process": 0, "step": 40, "loss": 1.25})
    run.set_state(RunState.FINISHED, Position(step=40))
    run.close()
    shown = attached.end()
    assert attached.process.returncode == 0
    for part in (
        "small on local: 1 host x 2 devices",
        "running",
        "host 0 hello from host 0",
        "host 0 warning: mind",
        "finished 40 steps",
        "loss 4.0000 -> 1.2500",
    ):
        assert part in shown


def test_it_goes_on_over_attempts(run: RunDir, attached: Attached, tmp_path: Path) -> None:
    add_events(run, step(1), {"event": "checkpoint_saved", "process": 0, "step": 1})
    run.end_attempt(AttemptResult(EndReason.CRASH, "host-0000 was killed by SIGKILL", step=1))
    run.begin(replace(small_launch(tmp_path), run_dir=run.folder, attempt=2))
    add_events(run, step(2).stamped(attempt=2))
    run.set_state(RunState.FAILED, reason="retries.failures: 3 is spent")
    run.close()
    shown = attached.end()
    assert attached.process.returncode == 1
    assert "attempt 1 ended: host-0000 was killed by SIGKILL" in shown
    assert "attempt 2 on local" in shown
    assert "small failed" in shown
    assert "retries.failures: 3 is spent" in shown


def test_of_earlier_attempts_only_the_checkpoint_is_known(run: RunDir, tmp_path: Path) -> None:
    add_events(run, {"event": "warning", "process": 0, "message": "an old one"})
    add_events(run, {"event": "checkpoint_saved", "process": 0, "step": 20})
    run.begin(replace(small_launch(tmp_path), run_dir=run.folder, attempt=2))
    attached = Attached(tmp_path)
    run.set_state(RunState.FINISHED, Position(step=40))
    run.close()
    shown = attached.end()
    assert "an old one" not in shown
    assert "checkpoint of step 20" in shown


@pytest.mark.parametrize(
    ("state", "code"), [("finished", 0), ("failed", 1), ("stopped", 130), ("interrupted", 130)]
)
def test_attach_to_ended_run_returns_its_exit_code(
    run: RunDir, tmp_path: Path, state: str, code: int
) -> None:
    run.set_state(RunState(state))
    run.close()
    done = launch(tmp_path, "attach", "small")
    assert done.returncode == code
    assert "not running: small" in done.stdout


def test_as_json_it_ends_with_the_status_and_shows_the_rest_beside_it(
    run: RunDir, tmp_path: Path
) -> None:
    attached = Attached(tmp_path, "-o", "json")
    run.set_state(RunState.FINISHED, Position(step=40))
    run.close()
    shown = attached.end()
    found = json.loads(shown[shown.index("{\n") :])
    assert (found["state"], found["exit_code"]) == ("finished", 0)
    assert shown.startswith("small on local")
