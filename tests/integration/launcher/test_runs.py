"""The run directory."""

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.core.states import RunState
from launcher.host.process_tree import start_time
from launcher.runs import live
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError
from launcher.runs.state_file import Position
from tests.support.launch_plans import small_launch
from tests.support.processes import wait_until
from tests.support.run_folders import event_of
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol.events import HeartbeatEvent, PhaseEvent, StepEvent, WarningEvent


def create(folder: Path, *, fresh: bool = False) -> RunDir:
    launch = small_launch(folder.parent)
    return RunDir.create(replace(launch, run_dir=folder), fresh=fresh)


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_the_job_reads_back_equal_and_the_plan_too(tmp_path: Path) -> None:
    launch = small_launch(tmp_path)
    with create(tmp_path / "run") as run:
        assert load(run.folder / "job.yaml", Job).value == launch.job
        plan = (run.folder / "plans" / "0001.json").read_text()
        assert Plan.model_validate_json(plan) == launch.plan


def test_a_run_that_exists_is_refused_with_what_to_do(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    with pytest.raises(RunFolderError, match=r"name=\.\.\..*--fresh"):
        create(tmp_path / "run")


def test_fresh_moves_earlier_runs_aside(tmp_path: Path) -> None:
    for _ in range(3):
        create(tmp_path / "run", fresh=True).close()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"run", "run.1", "run.2"}


def test_a_run_that_is_alive_is_not_moved_aside(tmp_path: Path) -> None:
    with create(tmp_path / "run"), pytest.raises(RunFolderError, match="is running now"):
        create(tmp_path / "run", fresh=True)


def test_uncreatable_run_folder_is_reported(tmp_path: Path) -> None:
    launch = small_launch(tmp_path)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunFolderError, match="cannot be made"):
        RunDir.create(replace(launch, run_dir=tmp_path / "file" / "run"))


def test_events_are_on_disk_at_once(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        run.add_event(StepEvent(step=1))
        assert events(run.folder)[-1] == {"event": "step", "step": 1}


def test_what_a_host_says_is_written_down_with_the_time_here(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        began = time.time()
        run.add_event(event_of({"event": "step", "process": 0, "time": 12.0}))
        noted = events(run.folder)[-1]
    assert noted["time"] == 12.0
    assert began <= noted["received"] <= time.time()


def test_a_run_that_is_opened_again_says_when(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    began = time.time()
    with RunDir.open(tmp_path / "run") as run:
        opened_by = time.time()
        run.add_event(StepEvent(step=1))
        *_, opened, step = events(run.folder)
    assert (opened["event"], step["event"]) == ("command_started", "step")
    assert began <= opened["time"] <= opened_by


def test_a_run_that_is_opened_for_nothing_has_the_same_events(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    before = events(tmp_path / "run")
    RunDir.open(tmp_path / "run").close()
    assert events(tmp_path / "run") == before


def test_the_state_is_replaced_whole(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        run.set_state(RunState.FAILED, reason="x" * 10_000)
        run.set_state(RunState.FINISHED)
        state = json.loads((run.folder / "state.json").read_text())
    assert state["state"] == "finished"
    assert "reason" not in state


def test_the_state_names_its_process_and_what_it_runs(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        run.set_state(RunState.RUNNING, Position(step=1))
        state = json.loads((run.folder / "state.json").read_text())
    assert (state["pid"], state["start_time"]) == (os.getpid(), start_time(os.getpid()))
    assert (state["attempt"], state["steps"], state["step"]) == (1, 2, 1)
    assert state["cluster"]["name"] == "local"


def test_every_change_of_the_state_is_an_event(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        run.set_state(RunState.RUNNING)
        run.set_state(RunState.RUNNING, Position(step=1))
        run.set_state(RunState.FAILED, reason="a bad disk")
        found = [e for e in events(run.folder) if e["event"] == "state"]
    changes = [(e["state"], e["attempt"], e.get("reason")) for e in found]
    assert changes == [
        ("provisioning", 1, None),
        ("running", 1, None),
        ("failed", 1, "a bad disk"),
    ]


def test_reopened_run_keeps_attempt_of_its_state(
    tmp_path: Path,
) -> None:
    create(tmp_path / "run").close()
    with RunDir.open(tmp_path / "run") as run:
        run.set_state(RunState.STOPPED)
        assert (run.recorded.attempt, run.recorded.steps) == (1, 2)
        assert run.cluster_ref.name == "local"


def test_events_do_not_grow_with_heartbeats_or_with_the_number_of_hosts(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        before = len(events(run.folder))
        for step in range(3):
            for process in range(64):
                run.add_event(HeartbeatEvent(process=process, phase="train"))
                run.add_event(StepEvent(process=process, step=step))
                run.add_event(event_of({"event": "phase", "process": process, "name": "save"}))
        kept = events(run.folder)[before:]
    assert [(e["event"], e["process"]) for e in kept] == [("step", 0), ("phase", 0)] * 3


def test_what_other_hosts_warn_of_is_kept(tmp_path: Path) -> None:
    with create(tmp_path / "run") as run:
        run.add_event(WarningEvent(process=63, message="mind"))
    assert events(run.folder)[-1]["message"] == "mind"


def test_storage_that_stalls_holds_up_neither_events_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled, well = threading.Event(), threading.Event()

    def stall(path: Path, text: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        stalled.set()
        well.wait(60)

    monkeypatch.setattr(live, "replace_file", stall)
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    monkeypatch.setattr(live, "CLOSING_S", 0.01)
    with create(tmp_path / "run") as run:
        run.add_event(HeartbeatEvent(process=0, phase="train"))
        assert stalled.wait(60)
        run.add_event(StepEvent(process=0, step=1))
    assert events(run.folder)[-1]["step"] == 1
    well.set()


def test_what_every_host_does_is_kept_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    with create(tmp_path / "run") as run:
        run.set_state(RunState.RUNNING)
        run.add_event(PhaseEvent(edge="begin", process=0, name="save"))
        run.add_event(HeartbeatEvent(process=1, phase="train"))
        wait_until(lambda: live.read(run.folder).phases == {0: "save", 1: "train"})
        assert run.recorded.state is RunState.RUNNING
