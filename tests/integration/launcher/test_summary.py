"""events.jsonl in bounded time: what a summary and the rest of the file have together."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.runs import goodput as goodputs
from launcher.runs import live, summary
from launcher.runs.goodput import goodput
from tests.support.cli import status, status_as_json
from tests.support.run_builders import RunEvents, parts
from tests.support.run_folders import add_events, make_run


def append(folder: Path, events: Sequence[dict[str, Any]]) -> None:
    with (folder / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def long_story() -> RunEvents:
    """Saves every 40 steps. Attempt 1 ends 20 steps after a save, attempt 2 after step 500."""
    story = RunEvents().training()
    for first in range(1, 400, 40):
        story.steps(first, first + 38).steps(first + 39, first + 39, 3.0, data_wait_s=2.5)
        story.phase("save", 2).host("checkpoint_saved", step=first + 39)
    story.steps(401, 420).after(0.5).ended("crash").next_attempt().training().steps(401, 500)
    return story.finished()


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.77, 1.0])
def test_a_summary_and_the_rest_give_the_goodput_of_all(
    tmp_path: Path, cut: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = long_story()
    whole, lines = goodput(story.events), story.lines
    monkeypatch.setattr(goodputs, "FOLDED_STEPS", 40)
    half = int(cut * len(lines))
    append(tmp_path, lines[:half])
    summary.write(tmp_path)
    append(tmp_path, lines[half:])
    found = summary.read(tmp_path)
    assert found.begin == 0
    assert found.goodput(None).seconds == parts_of(whole)
    assert found.history.checkpoint is not None
    assert found.history.checkpoint.step == 400


def parts_of(found) -> dict[str, Any]:
    return {part: pytest.approx(s, abs=1e-5) for part, s in found.seconds.items()}


def test_steps_in_blocks_that_a_later_attempt_did_again_are_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = long_story()
    whole = parts(goodput(story.events))
    monkeypatch.setattr(goodputs, "FOLDED_STEPS", 40)
    assert parts(goodput(story.events)) == whole
    story.next_attempt().training().steps(41, 41)
    lost_s = 9 * 42 + 20 + 0.5 + 100  # all after the save of step 40
    assert goodput(story.events).seconds[goodputs.Part.LOST] == pytest.approx(lost_s)


def test_a_summary_does_not_grow_with_the_number_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(goodputs, "FOLDED_STEPS", 10)
    monkeypatch.setattr(summary, "MOST_READ_BYTES", 1 << 30)
    append(tmp_path, RunEvents().training().steps(1, 20_000, 0.01).lines)
    summary.write(tmp_path)
    assert (tmp_path / summary.NAME).stat().st_size < 500_000


def test_a_run_summarizes_its_events_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "SUMMARY_EVERY_BYTES", 2000)
    monkeypatch.setattr(live, "CLOSING_S", 60.0)
    with make_run(tmp_path) as run:
        for step in range(1, 100):
            add_events(run, {"event": "step", "process": 0, "step": step})
    stored = json.loads((run.folder / summary.NAME).read_text())
    size = (run.folder / "events.jsonl").stat().st_size
    assert size - 4000 < stored["offset"] <= size


def test_without_a_summary_only_the_newest_events_of_a_large_file_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "MOST_READ_BYTES", 10_000)
    append(tmp_path, long_story().lines)
    size = (tmp_path / "events.jsonl").stat().st_size
    found = summary.read(tmp_path)
    assert size - 10_000 <= found.begin < size - 9_000
    assert found.offset == size


@pytest.mark.parametrize("text", ["", "{", '{"offset": 1000000000}', '{"offset": "x"}'])
def test_a_summary_that_is_not_of_this_file_is_left_out(tmp_path: Path, text: str) -> None:
    story = long_story()
    append(tmp_path, story.lines)
    (tmp_path / summary.NAME).write_text(text)
    assert summary.read(tmp_path).goodput(None).seconds == parts_of(goodput(story.events))


def test_a_line_that_is_being_written_is_read_the_next_time(tmp_path: Path) -> None:
    append(tmp_path, RunEvents().training().lines)
    whole = (tmp_path / "events.jsonl").stat().st_size
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event": "st')
    assert summary.read(tmp_path).offset == whole


def test_status_reads_the_summary_and_not_what_is_summarized(tmp_path: Path) -> None:
    """The summarized part is overwritten: nothing of it is missed."""
    with make_run(tmp_path) as run:
        add_events(run, {"event": "checkpoint_saved", "process": 0, "step": 7})
        summary.write(run.folder)
        size = (run.folder / "events.jsonl").stat().st_size
        with (run.folder / "events.jsonl").open("r+b") as file:
            file.write(b"x" * (size - 1))
        found = status_as_json(tmp_path)
        shown = status(tmp_path)
    assert found["checkpoint"]["step"] == 7
    assert found["events_left_out_bytes"] == 0
    assert "which has no summary" not in shown
