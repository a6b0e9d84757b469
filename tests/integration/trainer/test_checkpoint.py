"""Saving the state: in the background, on a full disk, no more of it than the policy keeps."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.saves import Kept, equal
from trainer.checkpoint import save_progress
from trainer.checkpoint.commit import TEMPORARY
from trainer.checkpoint.errors import FolderError, SaveError
from trainer.checkpoint.initial_state import InitialState
from trainer.checkpoint.policy import ScheduledSaving
from trainer.contract.records import checkpoint_metadata
from trainer.contract.storage import durable_files

# Writes of a failed save that tensorstore still had under way come back, later, to an event loop
# that Orbax has closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_only_what_the_policy_keeps_stays(tmp_path):
    policy = {"every_steps": 1, "keep": 2, "keep_every_steps": 3, "keep_best": 1}
    kept = Kept.of(tmp_path, checkpoint=policy)
    for step in range(1, 8):
        kept.save(step, eval_loss=abs(step - 2))
        assert kept.saver.poll(wait=True) is None
    assert checkpoint_metadata.steps(kept.folder) == [7, 6, 3, 2]


def test_a_deletion_that_was_cut_off_leaves_no_checkpoint(tmp_path, monkeypatch):
    kept = Kept.of(tmp_path, checkpoint={"every_steps": 1, "keep": 1})
    kept.saved(1)
    with monkeypatch.context() as patch:
        patch.setattr(type(kept.checkpoints.folder), "rmtree", _delete_one_file)
        kept.saved(2)
    assert any("could not be deleted" in line for line in kept.said.lines)
    assert checkpoint_metadata.steps(kept.folder) == [2]
    (kept.folder / ".probe-1-0123-1").write_text("")
    (kept.folder / ".lease.json.1-0123").write_text("")
    Kept.of(tmp_path, attempt=2)
    assert sorted(path.name for path in kept.folder.iterdir()) == ["2", "lease.json"]


def _delete_one_file(folder: Path) -> None:
    (folder / "manifest.ocdbt").unlink()
    raise OSError("cut off")


def test_a_checkpoint_is_on_the_disk_before_it_is_committed(tmp_path, monkeypatch):
    """Every file and folder of a step, and then the folder that has it."""
    synced, real = list[Path](), durable_files.sync
    monkeypatch.setattr(durable_files, "sync", lambda path: (real(path), synced.append(Path(path))))
    kept = Kept.of(tmp_path)
    assert [path.name for path in synced] == [
        f".lease.json.{kept.checkpoints.lease.label}",
        "checkpoints",
    ]
    kept.saved(1)
    names = {path.name for path in synced}
    files = {Path(name).name for name in checkpoint_metadata.read(kept.folder / "1").files}
    assert names >= {*files, "about.json"}
    assert synced[-1] == kept.folder and TEMPORARY in synced[-2].name


def test_a_save_that_comes_no_further_is_given_up_and_never_committed(tmp_path, monkeypatch):
    monkeypatch.setattr(save_progress, "POLL_INTERVAL_S", 0.05)
    stuck, passed = threading.Event(), threading.Event()
    monkeypatch.setattr(durable_files, "sync_all", lambda folder: (stuck.wait(60), passed.set()))
    kept = Kept.of(tmp_path, deadlines={"save_s": 0.5})
    kept.save(1)
    error = kept.saver.poll(wait=True)
    assert "no bytes were written for 0 s" in str(error) and "deadlines.save_s" in str(error)
    stuck.set()
    assert passed.wait(60)
    kept.saved(2)
    assert checkpoint_metadata.steps(kept.folder) == [2]


def test_a_save_reports_what_it_has_written(tmp_path, monkeypatch):
    kept = Kept.of(tmp_path)
    told = list[tuple[int, int, int]]()
    monkeypatch.setattr(kept.said, "saving", lambda *fields: told.append(fields))
    kept.saved(1)
    step, written, total = told[-1]
    assert step == 1 and 0.9 * total < written < 1.5 * total


def test_error_of_last_save_is_raised_although_job_says_continue(tmp_path):
    kept = Kept.of(tmp_path)
    assert kept.made.program.job.checkpoint
    start = InitialState(kept.made.initial())
    saving = ScheduledSaving(cast(Any, None), kept.saver, cast(Any, None), start)
    kept.save(1)
    saving.finish()
    shutil.rmtree(kept.folder)
    kept.folder.write_text("no folder any more")
    kept.save(2)
    with pytest.raises(SaveError, match="the last checkpoint could not be saved"):
        saving.finish()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot write checkpoints"):
        Kept.of(tmp_path / "run", storage=str(tmp_path / "file"))


def test_a_read_only_mount_is_refused(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no mount is allowed here")
    try:
        with pytest.raises(FolderError, match="cannot write checkpoints: Read-only file system"):
            Kept.of(tmp_path / "run", storage=str(disk))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 3 MiB, some eight checkpoints."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * 4096)


def test_full_disk_fails_one_save_and_next_succeeds_with_room(tmp_path, small_disk):
    kept = Kept.of(tmp_path / "run", storage=str(small_disk))
    kept.saved(1)
    _fill(small_disk)
    kept.save(2)
    error = kept.saver.poll(wait=True)
    assert error is not None
    assert any("step 2 NOT saved" in line and "space" in line for line in kept.said.lines)
    (small_disk / "filler").unlink()
    state = kept.saved(3)
    assert sorted(path.name for path in kept.folder.iterdir()) == ["1", "3", "lease.json"]
    restored = kept.restore()
    assert restored and equal(restored.state, state)


def test_a_failed_save_ends_the_run_where_the_job_says_so(tmp_path, small_disk):
    policy = {"every_steps": 1, "on_save_error": "stop"}
    kept = Kept.of(tmp_path / "run", storage=str(small_disk), checkpoint=policy)
    _fill(small_disk)
    kept.save(1)
    with pytest.raises(SaveError, match="could not be saved"):
        kept.saver.poll(wait=True)


def test_a_disk_without_room_for_two_is_refused(tmp_path, small_disk):
    (small_disk / "filler").write_bytes(b"x" * 2_600_000)
    with pytest.raises(FolderError, match="no space for two checkpoints"):
        Kept.of(tmp_path / "run", storage=str(small_disk))


def test_what_a_checkpoint_says_is_json(tmp_path):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    about = json.loads((kept.folder / "1" / "about.json").read_text())
    assert about["job"]["model"]["d_model"] == 32
    assert about["world"]["devices_per_host"] == 2 and about["mesh"]["fsdp"] == 2
    assert set(about["versions"]) >= {"jax", "orbax-checkpoint", "python"}
    assert set(about["files"]) >= {"manifest.ocdbt", "_METADATA"}
