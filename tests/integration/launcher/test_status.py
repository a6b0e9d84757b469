"""`launch status`: how a run stands, what happened, and the command that goes on."""

import json
import time
from pathlib import Path

import pytest

from launcher.core.results import RunState
from launcher.runs import live
from launcher.runs.directory import RunDir
from launcher.runs.status import read_status
from tests.support.cli import launch, status, status_as_json
from tests.support.processes import wait_until
from tests.support.run_folders import add_events, add_steps, make_run

ENDED = {
    "event": "attempt_ended",
    "end_reason": "crash",
    "reason": "host-0001 was killed by SIGKILL",
    "process": 1,
    "step": 12,
}


def test_a_run_that_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    with make_run(tmp_path) as run:
        run.set_state(RunState.RUNNING)
        add_steps(run, 1, 2)
        saved = {"event": "checkpoint_saved", "process": 0, "step": 2}
        add_events(run, saved, time=time.time() - 90)
        add_events(run, {"event": "heartbeat", "process": 0, "phase": "train", "step": 2})
        wait_until(lambda: live.read(run.folder).phases == {0: "train"})
        shown, found = status(tmp_path), status_as_json(tmp_path)
    assert shown.startswith("small  running, attempt 1")
    for part in ("2/40, loss 4.8000", "1 host x 2 devices: 1 train", str(run.folder)):
        assert part in shown
    assert "follow it with: launch attach small" in shown
    assert found["checkpoint"]["step"] == 2
    assert found["hosts"] == {"0": "train"}
    assert found["command"] == "launch attach small"


def test_a_run_that_died_has_lived_until_its_last_heartbeat(tmp_path: Path) -> None:
    """Heartbeats are not kept: hosts.json has the time of the last."""
    now = time.time()
    with make_run(tmp_path) as run:
        run.set_state(RunState.RUNNING)
        begun = {"event": "phase", "process": 0, "name": "compile", "edge": "begin"}
        add_events(run, begun, time=now)
    (run.folder / live.NAME).write_text(json.dumps({"heard": now + 600}))
    parts_s = status_as_json(tmp_path)["goodput"]["parts_s"]
    assert parts_s["lost"] == pytest.approx(600, abs=1)


def test_a_run_that_died_and_is_resumed_has_lived_until_its_last_heartbeat(tmp_path: Path) -> None:
    now = time.time() - 1000
    with make_run(tmp_path) as run:
        folder = run.folder
    events = [
        {"event": "state", "state": "running", "time": now, "attempt": 1},
        {"event": "phase", "process": 0, "name": "compile", "edge": "begin", "time": now},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / live.NAME).write_text(json.dumps({"heard": now + 600}))
    with RunDir.open(folder) as run:
        run.set_state(RunState.RUNNING)
    parts_s = status_as_json(tmp_path)["goodput"]["parts_s"]
    assert parts_s["lost"] == pytest.approx(600, abs=1)


def test_status_lists_events_in_order(tmp_path: Path) -> None:
    slow = {"event": "straggler", "process": 1, "message": "host-0001 is slow"}
    failed = {"event": "save_failed", "step": 10, "message": "disk full", "process": 0}
    hang = {"event": "hang", "reason": "host-0000 is behind: at step 14 in data for 31 s"}
    with make_run(tmp_path) as run:
        add_events(run, slow, failed, ENDED)
        add_events(run, hang | {"attempt": 2}, ENDED | {"attempt": 2, "end_reason": "hang"})
        shown, found = status(tmp_path), status_as_json(tmp_path)
    story = shown[shown.index("what happened") :].splitlines()[1:-1]
    for line, part in zip(
        story,
        (
            "attempt 1  host-0001 is slow",
            "attempt 1  saving step 10 failed: disk full",
            "attempt 1  ended at step 12: crash: host-0001 was killed by SIGKILL",
            "attempt 2  hang: host-0000 is behind",
            "attempt 2  ended at step 12: hang",
        ),
        strict=True,
    ):
        assert part in line
    assert [happening["attempt"] for happening in found["happened"]] == [1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("state", "command"),
    [
        ("failed", "launch resume small"),
        ("interrupted", "launch resume small"),
        ("running", "launch resume small"),
        ("finished", None),
    ],
)
def test_a_run_that_is_over_says_how_it_goes_on(
    tmp_path: Path, state: str, command: str | None
) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState(state))
    assert status_as_json(tmp_path)["command"] == command


def test_status_shows_reason_of_failed_run(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState.FAILED, reason="retries.failures: 3 is spent")
    assert "retries.failures: 3 is spent" in status(tmp_path)
    assert status_as_json(tmp_path)["reason"] == "retries.failures: 3 is spent"


def test_of_a_long_story_the_end_is_shown(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        add_events(run, *[ENDED | {"attempt": number} for number in range(1, 51)])
        shown = status(tmp_path)
    assert "30 earlier events" in shown
    assert "attempt 50  ended" in shown
    assert "attempt 30  ended" not in shown


def test_an_older_checkpoint_that_was_restored_is_the_last_one(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        add_events(run, {"event": "checkpoint_saved", "process": 0, "step": 20})
        damaged = {"event": "restored", "process": 0, "step": 10, "message": "20 is damaged"}
        add_events(run, damaged | {"attempt": 2})
        assert status_as_json(tmp_path)["checkpoint"]["step"] == 10


def test_an_unknown_run_is_bad_usage(tmp_path: Path) -> None:
    result = launch(tmp_path, "status", "nothing")
    assert result.returncode == 2
    assert "nothing: no run of this name" in result.stderr


def test_state_file_with_wrong_field_is_reported_and_hides_no_other_run(tmp_path: Path) -> None:
    with make_run(tmp_path, "other"), make_run(tmp_path) as run:
        path = run.folder / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "steps": "many"}))
    shown = launch(tmp_path, "status", "small")
    assert shown.returncode == 3
    assert f"{path} has a wrong field `steps`" in shown.stderr
    listed = json.loads(launch(tmp_path, "list", "-o", "json").stdout)
    states = {run["folder"]: run["state"] for run in listed}
    other = run.folder.with_name("other")
    assert (states[str(run.folder)], states[str(other)]) == ("unknown", "lost")


def test_state_of_another_version_is_unknown(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        (run.folder / "state.json").write_text('{"state": "suspended", "more": 1}')
        assert read_status(run.folder).state is RunState.UNKNOWN
