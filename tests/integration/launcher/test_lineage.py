"""`launch lineage`: the runs that a checkpoint comes from, and the commands that repeat it."""

import shlex
from pathlib import Path

import pytest

from launcher.commands.lineage import card, read, write_card
from launcher.core.errors import UsageError
from launcher.core.states import RunState
from launcher.runs.checkpoints import entries
from launcher.runs.folder import RunFolderError
from tests.support.checkpoint_metadata_builders import about_of
from tests.support.cli import launch
from tests.support.run_folders import add_steps, make_run
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.records.checkpoint_metadata import Array, Base, CheckpointMetadata

ARRAYS = {
    "params.table": Array(shape=(4, 8), dtype="float32", digest=1),
    "optimizer.mu.table": Array(shape=(4, 8), dtype="float32", digest=2),
}


def add_run(folder: Path, name: str, init_from: str | None = None) -> Path:
    """Adds a finished run with a checkpoint of step 4; returns the folder of the checkpoint."""
    with make_run(folder, name, steps=4) as run:
        add_steps(run, 1, 2, 3, 4)
        job = load(run.folder / "job.yaml", Job).value
        assert job.checkpoint
        checkpoint = job.checkpoint.model_copy(update={"init_from": init_from})
        path = run.folder / "checkpoints" / "4"
        path.mkdir(parents=True)
        about = about_of(
            job.model_copy(update={"checkpoint": checkpoint}), 4, arrays=ARRAYS,
            run_id=(run.folder / "run_id").read_text().strip(),
        )  # fmt: skip
        (path / "about.json").write_text(about.model_dump_json())
        run.set_state(RunState.FINISHED)
    return path


def test_lineage_follows_the_weights_to_the_first_run(tmp_path: Path) -> None:
    first = add_run(tmp_path, "first", init_from="/models/pretrained")
    second = add_run(tmp_path, "second", init_from=str(first))
    found = read("second@4", tmp_path / "runs")
    assert [(one.run, one.step) for one in found.runs] == [("second", 4), ("first", 4)]
    assert found.unknown_origin == "/models/pretrained"
    assert found.last.checkpoint == str(second)
    assert (found.last.parameters, found.last.corpus_sha256) == (32, "a" * 64)
    (attempt,) = found.last.attempts
    assert (attempt.first_step, attempt.last_step) == (1, 4)
    one, two = map(shlex.split, found.commands)
    assert one[-2:] == ["name=first-again", "stop_after_step=4"]
    assert two[-3:] == [
        "name=second-again",
        "stop_after_step=4",
        "checkpoint.init_from=run:first-again@4",
    ]


def test_teacher_is_named(tmp_path: Path) -> None:
    path = add_run(tmp_path, "student") / "about.json"
    about = CheckpointMetadata.model_validate_json(path.read_text())
    teacher = Base(source="/runs/teacher/checkpoints/9", step=9, digests={})
    path.write_text(about.model_copy(update={"teacher": teacher}).model_dump_json())
    assert read("student@4", tmp_path / "runs").last.teacher == teacher.source
    assert f"learned from {teacher.source}\n" in launch(tmp_path, "lineage", "student").stdout


def test_newest_checkpoint_is_shown_as_text(tmp_path: Path) -> None:
    add_run(tmp_path, "first")
    printed = launch(tmp_path, "lineage", "first").stdout
    assert printed.startswith("first, step 4\n")
    assert "weights of   its own random initialization" in printed
    assert "to repeat it:\n  launch --cluster" in printed


def test_checkpoint_without_its_run_has_no_commands(tmp_path: Path) -> None:
    folder = add_run(tmp_path, "first")
    (folder.parents[1] / "run_id").write_text("another\n")
    found = read(str(folder.parent), tmp_path / "runs")
    assert (found.commands, found.last.attempts, found.last.hosts) == ((), (), 2)
    assert "the folder of a run, with its job file, is not on this machine" in card(found)


def test_unknown_checkpoints_are_refused(tmp_path: Path) -> None:
    add_run(tmp_path, "first")
    with pytest.raises(RunFolderError, match=r"no whole checkpoint of step 3\. Whole ones: 4"):
        read("first@3", tmp_path / "runs")
    with pytest.raises(UsageError, match="expected a step or `best` after the @"):
        read("first@last", tmp_path / "runs")


def test_card_of_an_export_is_not_overwritten(tmp_path: Path) -> None:
    (entry,) = entries(str(add_run(tmp_path, "first").parent))
    write_card(entry, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: transformers\n---\n\n# first, step 4\n")
    assert f"| data hash | {'a' * 64} |" in text
    (tmp_path / "README.md").write_text("mine")
    write_card(entry, tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
