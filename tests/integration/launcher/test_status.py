"""`launch status`: how a run stands, what happened, and the command that goes on."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.states import RunState
from launcher.planning.planner import TrainingLaunch
from launcher.runs import live
from launcher.runs.directory import RunDir
from launcher.runs.status import read_status
from tests.support.cli import launch, status, status_as_json
from tests.support.launch_plans import small_launch
from tests.support.processes import wait_until
from tests.support.run_folders import add_events, add_steps, make_run
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.save_interval import SaveStatistics

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


def test_a_discarded_checkpoint_is_not_shown(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState.RUNNING)
        add_events(run, *({"event": "checkpoint_saved", "step": step} for step in (2, 4)))
        add_events(run, {"event": "checkpoints_discarded", "newest": 2})
    assert status_as_json(tmp_path)["checkpoint"]["step"] == 2


def test_the_newest_evaluation_is_shown(tmp_path: Path) -> None:
    first = {"event": "eval", "step": 10, "eval_loss": 3.5}
    newest = {"accuracy": 0.5, "tasks": {"arc/acc": 0.25}}
    with make_run(tmp_path) as run:
        add_events(run, first, {**first, "step": 20, **newest})
        shown, found = status(tmp_path), status_as_json(tmp_path)
    assert "evaluation  step 20, loss 3.5000, accuracy 50.0%, arc/acc 0.25\n" in shown
    assert found["evaluation"] == {"step": 20, "loss": 3.5, "losses": {}, **newest}


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


CHOSEN = {
    "seconds": 35.0, "cost_s": 2.0, "blocked_s": 1.5, "slowed_s": 0.5, "saves": 7,
    "mtbf_s": 1600.0, "faults": 0,
}  # fmt: skip


def test_status_shows_the_automatic_interval_that_was_reported_last(tmp_path: Path) -> None:
    later = {**CHOSEN, "seconds": 80.0, "faults": 1}
    with make_run(tmp_path) as run:
        assert status_as_json(tmp_path)["checkpoint_interval"] is None
        for chosen in (CHOSEN, later):
            add_events(run, {"event": "checkpoint_interval", "process": 0, **chosen})
        shown, found = status(tmp_path), status_as_json(tmp_path)
    assert found["checkpoint_interval"] == later
    assert (
        "every 80 s; a save costs 2 s (measured), 1 fault so far, allows for one in 26.7 min"
        in shown
    )


def test_plan_of_the_next_attempt_has_the_faults_and_the_cost_so_far(tmp_path: Path) -> None:
    launch = with_automatic_interval(small_launch(tmp_path))
    with RunDir.create(launch) as run:
        connected = {"event": "initialized", "process": 0, "processes": 1}
        add_events(run, connected, {"event": "checkpoint_interval", "process": 0, **CHOSEN})
        add_events(run, ENDED | {"process": None}, time=time.time() + 100.0)
        run.begin(replace(launch, attempt=2))
    first, second = (
        Plan.model_validate_json((run.folder / "plans" / f"000{attempt}.json").read_text())
        for attempt in (1, 2)
    )
    assert first.save_statistics == launch.plan.save_statistics
    known = second.save_statistics
    assert known and (known.faults, known.follows_fault) == (1, True)
    assert (known.blocked_s, known.slowed_s, known.saves) == (1.5, 0.5, 7)
    assert known.host_s == pytest.approx(100.0, abs=5.0)


def test_plan_of_a_resumed_run_has_the_faults_of_the_earlier_command(tmp_path: Path) -> None:
    launch = with_automatic_interval(small_launch(tmp_path))
    with RunDir.create(launch) as run:
        add_events(run, {"event": "initialized", "process": 0, "processes": 1}, ENDED)
    with RunDir.open(launch.run_dir) as run:
        run.begin(replace(launch, attempt=2))
    plan = Plan.model_validate_json((launch.run_dir / "plans" / "0002.json").read_text())
    assert plan.save_statistics and plan.save_statistics.faults == 1


def with_automatic_interval(launch: TrainingLaunch) -> TrainingLaunch:
    return replace(
        launch, plan=launch.plan.model_copy(update={"save_statistics": SaveStatistics()})
    )


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
