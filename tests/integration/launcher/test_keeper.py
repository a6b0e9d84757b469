"""The keeper of slices: whatever fails, it does not end while something is held."""

import json
import os
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from launcher.commands.held_slices import held_lines
from launcher.core.errors import HostError
from launcher.executors import gcp, gcp_reclaimer
from launcher.executors.gcp_reclaimer import Keeper
from launcher.executors.ssh import RunRequest
from launcher.providers.gcp import pod, slice_records
from launcher.providers.gcp.failures import trouble_of
from launcher.providers.gcp.pod import TpuSliceRequest
from launcher.providers.gcp.slice_records import is_recorded
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.runs.folder import REMOTE
from launcher.runs.status import read_status
from tests.support.processes import wait_until
from tests.support.tpu_slices import MemoryApi, PlayedRun, cluster_file, ended, make_pod, started


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryApi:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for module in (gcp, gcp_reclaimer):
        monkeypatch.setattr(module, "ASK_S", 0.0)
    monkeypatch.setattr(gcp_reclaimer, "POLL_INTERVAL_S", 0.001)
    monkeypatch.setattr(gcp_reclaimer, "RETRY_S", 0.002)
    monkeypatch.setattr(pod, "POLL_INTERVAL_S", 0.001)
    found = MemoryApi()
    monkeypatch.setattr(pod, "Api", found.at)
    return found


def held_pod(
    api: MemoryApi, folder: Path, more: str = "", stage: str = "running"
) -> TpuSliceRequest:
    """One with slices, of the run FOLDER/runs/small."""
    run = folder / "runs" / "small"
    run.mkdir(parents=True)
    (run / "job.yaml").touch()
    (run / REMOTE).write_text("{}")
    file = cluster_file(folder, more=more)
    found = make_pod(file, run, stage=stage, is_seen=True, active_at=time.time())
    api.held[found.note.resource_id] = ""
    return found


def replacements(monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    """The runs that were to go on with other slices."""
    found: list[RunRequest] = []
    # No handlers of signals.
    monkeypatch.setattr(gcp_reclaimer.RemoteSubmission, "reporting", lambda self: nullcontext())
    monkeypatch.setattr(
        gcp_reclaimer.SliceSubmission, "replaced", lambda self, begin: found.append(begin) or 0
    )
    return found


def play(monkeypatch: pytest.MonkeyPatch, run: PlayedRun) -> None:
    """The run that remote.json is about, for as long as that is there."""
    monkeypatch.setattr(
        RemoteRun, "read", lambda folder: run if (folder / REMOTE).exists() else None
    )


def reason(held: TpuSliceRequest) -> str:
    return json.loads((Path(held.note.run) / "state.json").read_text())["reason"]


def refuse(error: Exception) -> bool:
    raise error


def test_reclaimer_survives_one_error_and_deletes_slices_after_many(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, tries = held_pod(api, tmp_path), []

    def over() -> bool:
        tries.append(1)
        raise RuntimeError("torn answer")

    play(monkeypatch, PlayedRun(held, over))
    assert ended(Keeper(held.folder).keep)
    assert api.deleted == [held.note.resource_id]
    assert len(tries) == gcp_reclaimer.MOST_FAILURES
    assert reason(held) == (
        "the slices were given back: the run could not be followed: RuntimeError: torn answer"
    )


def test_a_success_between_unexpected_errors_keeps_the_slices(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pod(api, tmp_path)
    answers = iter(([RuntimeError("torn")] * 7 + [None]) * 3)

    def over() -> bool:
        answer = next(answers, "over")
        if isinstance(answer, Exception):
            raise answer
        return answer == "over"

    run = PlayedRun(held, over, state="finished")
    play(monkeypatch, run)
    assert ended(Keeper(held.folder).keep)
    assert run.verbs == [] and read_status(Path(held.note.run)).state == "finished"


@pytest.mark.parametrize("text", ["", "nonsense", '{"other": 1}'])
def test_a_run_that_cannot_be_read_gives_the_slices_back(
    text: str, api: MemoryApi, tmp_path: Path
) -> None:
    held = held_pod(api, tmp_path)
    (Path(held.note.run) / REMOTE).write_text(text)
    assert ended(Keeper(held.folder).keep)
    assert api.deleted == [held.note.resource_id]
    assert "the run could not be followed: RunRecordError" in reason(held)
    assert not (Path(held.note.run) / REMOTE).exists()


def test_a_preemption_is_believed_though_the_api_is_silent_afterwards(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, replaced = held_pod(api, tmp_path), replacements(monkeypatch)
    play(monkeypatch, PlayedRun(held))
    (Path(held.note.run) / "job.yaml").write_text("name: small\ncommand: [x]\n")
    polled = gcp.SliceMonitor.poll

    def poll(self: gcp.SliceMonitor, run: RemoteRun) -> None:
        api.lost = True
        try:
            polled(self, run)
        finally:
            api.failures = 2

    monkeypatch.setattr(gcp.SliceMonitor, "poll", poll)
    assert ended(Keeper(held.folder).keep)
    assert len(replaced) == 1 and api.deleted == [held.note.resource_id]


def test_slices_with_silent_host_are_deleted_with_last_copy_of_run(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pod(api, tmp_path, ", unreachable_minutes: 0.001")
    run = PlayedRun(held, lambda: refuse(HostError("worker-0: no answer")))
    play(monkeypatch, run)
    run.copy(held.folder / "copy")
    assert ended(Keeper(held.folder).keep)
    assert api.deleted == [held.note.resource_id]
    assert "the hosts have not answered for 0.001 minutes: worker-0: no answer" in reason(held)
    assert read_status(Path(held.note.run)).step == 7


def test_ended_run_that_cannot_be_copied_keeps_slices_for_autostop_only(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, tries = held_pod(api, tmp_path, ", autostop_minutes: 0.001"), []

    def brings() -> None:
        tries.append(1)
        raise HostError("No space left on device")

    play(monkeypatch, PlayedRun(held, lambda: True, brings))
    assert ended(Keeper(held.folder).keep)
    assert api.deleted == [held.note.resource_id] and len(tries) > 1
    assert "could not be copied for 0.001 minutes: No space left on device" in reason(held)


def test_a_copy_that_works_in_the_end_is_the_run(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pod(api, tmp_path)
    problems = [HostError("full"), OSError(28, "full")]
    run = PlayedRun(held, lambda: True, lambda: problems and refuse(problems.pop()))
    run.state = "finished"
    play(monkeypatch, run)
    assert ended(Keeper(held.folder).keep)
    assert read_status(Path(held.note.run)).state == "finished" and not api.held


def test_slices_are_given_back_though_nothing_can_be_written_here(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pod(api, tmp_path, ", autostop_minutes: 0.0001")
    play(monkeypatch, PlayedRun(held, lambda: True, lambda: refuse(OSError(28, "full"))))
    home, full, replaced = gcp.SliceMonitor.fetch, [True], replacements(monkeypatch)

    def fetch(self: gcp.SliceMonitor, folder: Path) -> None:
        if full:
            raise OSError(28, "full")
        home(self, folder)

    monkeypatch.setattr(pod, "replace_file", lambda path, text: refuse(OSError(28, "full")))
    monkeypatch.setattr(gcp.SliceMonitor, "fetch", fetch)
    watched = started(Keeper(held.folder).keep)
    wait_until(lambda: api.deleted)
    # The next try may be replacing the copy at this moment.
    wait_until(lambda: (held.folder / "copy" / "metrics.jsonl").exists())
    full.clear()
    watched.join(60.0)
    assert api.deleted == [held.note.resource_id] and not is_recorded(held.folder)
    assert not replaced, "slices that were given back here are not preempted"
    assert read_status(Path(held.note.run)).step == 7


def test_max_hours_stops_the_run_in_order_and_gives_the_slices_back(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pod(api, tmp_path, ", max_hours: 0.000001")
    run = PlayedRun(held, state="stopped")
    play(monkeypatch, run)
    assert ended(Keeper(held.folder).keep)
    assert run.verbs == ["stop"] and api.deleted == [held.note.resource_id]
    assert "is held for provider.max_hours: 1e-06" in reason(held)
    assert read_status(Path(held.note.run)).state == "stopped"


def test_max_hours_ends_slices_whose_host_does_not_answer(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pod(api, tmp_path, ", max_hours: 0.000001")
    play(monkeypatch, PlayedRun(held, lambda: refuse(HostError("no answer"))))
    assert ended(Keeper(held.folder).keep)
    assert "and it does not answer: no answer" in reason(held)


def test_an_api_that_fails_for_a_while_leaves_nothing_held(api: MemoryApi, tmp_path: Path) -> None:
    held = held_pod(api, tmp_path, stage="asked")
    api.failures = 50
    assert ended(Keeper(held.folder).keep)
    assert api.deleted == [held.note.resource_id] and not held.folder.exists()


@pytest.mark.parametrize("text", ["", "{", '{"from": "another version"}'])
def test_slices_of_an_unreadable_note_are_given_back(
    text: str, api: MemoryApi, tmp_path: Path
) -> None:
    held = held_pod(api, tmp_path)
    (held.folder / slice_records.STATE).write_text(text)
    assert ended(Keeper(held.folder).keep)
    assert api.deleted == [held.note.resource_id] and not held.folder.exists()


def test_slices_appearing_after_unanswered_request_are_deleted(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = make_pod(cluster_file(tmp_path), tmp_path / "runs" / "small")
    api.appears_after, name = 5, asked.note.resource_id
    (asked.folder / "key.pub").touch()
    monkeypatch.setattr(pod, "request", lambda *given: None)
    with pytest.raises(HostError, match="releases slices that appear within 10 minutes"):
        asked.send_request()
    assert not asked.release()
    assert is_recorded(asked.folder) and not api.deleted
    assert ended(Keeper(asked.folder).keep)
    assert api.deleted == [name] and not asked.folder.exists()


def test_a_request_without_an_answer_is_forgotten_once_nothing_can_appear(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod, "LATE_S", 0.05)
    asked = make_pod(cluster_file(tmp_path), tmp_path / "runs" / "small", asked_at=0.0)
    began = time.monotonic()
    assert ended(Keeper(asked.folder).keep)
    assert time.monotonic() - began >= 0.05, "the time counts from the keeper's first look"
    assert not asked.folder.exists()


def test_a_keeper_in_trouble_is_seen_with_the_cost_so_far(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pod(api, tmp_path)
    held.note = held.note.model_copy(update={"active_at": time.time() - 7200})
    held.set("running")
    play(monkeypatch, PlayedRun(held, lambda: refuse(HostError("no answer"))))
    watched = started(Keeper(held.folder).keep)
    wait_until(lambda: trouble_of(held.folder))
    (line,) = held_lines(Path(held.note.run))
    assert f"{held.note.resource_id}: v4-16 (on demand) in us-central2-b, project mine" in line
    assert "held for 2:0" in line and "about $51." in line and "so far; run " in line
    assert "no answer" in line and "no process looks after these slices" in line
    held.set("ending")
    watched.join(60.0)
    assert not is_recorded(held.folder)


def test_a_copy_that_is_cut_off_anywhere_leaves_a_whole_one(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_pod(api, tmp_path)
    watch, run = gcp.SliceMonitor(held), PlayedRun(held)
    watch.take_copy(run)  # pyright: ignore[reportArgumentType]
    for at in range(2):
        renames = iter(range(10))
        rename = Path.rename

        def cut(self: Path, target: Path, at: int = at, calls=renames, real=rename) -> Path:
            if next(calls) == at:
                raise KeyboardInterrupt
            return real(self, target)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "rename", cut)
            watch.take_copy(run)  # pyright: ignore[reportArgumentType]
        copy = watch.last_copy
        assert copy is not None and (copy / "metrics.jsonl").exists(), at
    watch.take_copy(run)  # pyright: ignore[reportArgumentType]
    assert watch.last_copy == watch.copy


def test_the_folder_of_a_pods_key_is_for_its_user_only(
    api: MemoryApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod.subprocess, "run", lambda *given, **named: None)
    found = make_pod(cluster_file(tmp_path), tmp_path / "runs" / "small")
    pod.forget(found.folder)
    before = os.umask(0)
    try:
        found.write_record()
    finally:
        os.umask(before)
    assert found.folder.stat().st_mode & 0o777 == 0o700
