"""Saving and restoring the state: whole, damaged, on a full disk, by the wrong attempt."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.trainer.saves import Kept
from trainer.checkpoint import restore, saver
from trainer.checkpoint.errors import (
    FolderError,
    NoGoodCheckpointError,
    OtherRunError,
    SaveError,
    StaleError,
)
from trainer.spec import checkpoints
from trainer.spec.config import ConfigError

# Writes of a failed save that tensorstore still had under way come back, later, to an event loop
# that Orbax has closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def _equal(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def test_what_is_restored_is_what_was_saved(tmp_path):
    kept = Kept.of(tmp_path)
    state = kept.saved(2)
    restored = kept.restore()
    assert restored and _equal(restored.state, state)
    assert (restored.about.step, restored.about.examples, restored.notes) == (2, 16, [])
    assert restored.about.arrays["params.embedding.table"].shape == (384, 32)


@pytest.mark.parametrize(("devices", "mesh"), [(1, {}), (4, {"tensor": 2}), (3, {"tensor": 3})])
def test_it_lies_on_the_mesh_of_the_run_that_restores(tmp_path, devices, mesh):
    """Three tensor ranks pad the vocabulary to another length."""
    model = {"d_model": 48, "heads": 6, "kv_heads": 3, "head_dim": 8}
    state = Kept.of(tmp_path, devices=2, model=model).saved(1)
    kept = Kept.of(tmp_path, devices, attempt=2, model=model, mesh=mesh)
    restored = kept.restore()
    assert restored
    for name, array in restored.state.params.items():
        assert array.sharding == kept.made.trainable.shardings.params[name]
        rows = min(len(array), len(state.params[name]))
        np.testing.assert_array_equal(array[:rows], state.params[name][:rows])
        assert not np.any(array[rows:])


def test_arrays_saved_in_pieces_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "CHUNK_BYTES", 1000)
    state = Kept.of(tmp_path, devices=2).saved(1)
    restored = Kept.of(tmp_path, devices=4, attempt=2, mesh={"tensor": 2}).restore()
    assert restored and _equal(restored.state, state)


def test_a_run_on_parts_of_sequences_goes_on_without_them(tmp_path):
    state = Kept.of(tmp_path, devices=4, mesh={"context": 2}).saved(1)
    restored = Kept.of(tmp_path, devices=2, attempt=2, mesh={"tensor": 2}).restore()
    assert restored and _equal(restored.state, state)


def test_a_restore_reads_a_part_of_the_arrays_at_a_time(tmp_path):
    shapes = {name: jax.ShapeDtypeStruct((100 + n,), "float32") for n, name in enumerate("abcdef")}
    shardings = dict.fromkeys(shapes, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    shapes["large"] = jax.ShapeDtypeStruct((400,), "float32")
    shardings["large"] = shardings["a"]
    groups = list(restore.groups(shapes, shardings, parts=4))
    assert groups == [["large"], ["f", "e"], ["d", "c"], ["b", "a"]]


def test_without_a_checkpoint_there_is_nothing_to_restore(tmp_path):
    assert Kept.of(tmp_path).restore() is None


def _truncate(folder: Path) -> None:
    path = max(folder.rglob("*"), key=lambda path: path.stat().st_size * path.is_file())
    path.write_bytes(path.read_bytes()[:-7])


def _remove_a_file(folder: Path) -> None:
    (folder / "manifest.ocdbt").unlink()


def _flip_a_byte(folder: Path) -> None:
    """In the arrays' bytes: the middle of the largest data file."""
    files = [path for path in folder.rglob("d/*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _half_write(folder: Path) -> None:
    """As a copy that was cut off: some files are there, about.json among them."""
    for path in sorted(folder.rglob("d/*"))[1:]:
        path.unlink()


def _spoil_metadata(folder: Path) -> None:
    (folder / "about.json").write_text("{not json")


def _spoil_orbax_metadata(folder: Path) -> None:
    size = (folder / "_METADATA").stat().st_size
    (folder / "_METADATA").write_text("x" * size)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated file": (_truncate, "bytes of"),
    "missing file": (_remove_a_file, "manifest.ocdbt is missing"),
    "flipped byte": (_flip_a_byte, ""),
    "empty folder": (_empty, "about.json is missing"),
    "half-written folder": (_half_write, "is missing"),
    "about.json is not JSON": (_spoil_metadata, "about.json cannot be read"),
    "Orbax's metadata is not JSON": (_spoil_orbax_metadata, ""),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_moved_aside_and_the_one_before_it_used(tmp_path, damage, said):
    kept = Kept.of(tmp_path)
    state = kept.saved(1)
    kept.saved(2)
    damage(kept.folder / "2")
    restored = kept.restore()
    assert restored and restored.about.step == 1 and _equal(restored.state, state)
    assert (kept.folder / "2.damaged" / "problem.txt").exists()
    (warning,) = [line for line in kept.said.lines if "damaged" in line]
    assert "step 2 is damaged" in warning and said in warning


def test_a_flipped_byte_names_the_array(tmp_path):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    about = checkpoints.read(kept.folder / "1")
    name, array = "params.final_norm.scale", about.arrays["params.final_norm.scale"]
    wrong = {**about.arrays, name: array.model_copy(update={"digest": array.digest ^ 1})}
    text = about.model_copy(update={"arrays": wrong}).model_dump_json()
    (kept.folder / "1" / "about.json").write_text(text)
    with pytest.raises(NoGoodCheckpointError, match=r"the data of params\.final_norm\.scale"):
        kept.restore()


def test_a_run_whose_checkpoints_are_all_damaged_never_starts_anew(tmp_path):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    _truncate(kept.folder / "1")
    for _ in range(2):
        with pytest.raises(NoGoodCheckpointError, match="Nothing was deleted"):
            kept.restore()


def test_another_model_is_refused_and_a_learning_rate_is_said(tmp_path):
    Kept.of(tmp_path).saved(1)
    wider = Kept.of(tmp_path, attempt=2, model={"d_ff": 128})
    with pytest.raises(ConfigError, match=r"model\.d_ff: 64 -> 128"):
        wider.restore()
    restored = Kept.of(tmp_path, attempt=3, optimizer={"learning_rate": 1e-4}).restore()
    assert restored and restored.notes == ["optimizer.learning_rate: 0.003 -> 0.0001"]


def test_only_what_the_policy_keeps_stays(tmp_path):
    policy = {"every_steps": 1, "keep": 2, "keep_every_steps": 3, "keep_best": 1}
    kept = Kept.of(tmp_path, checkpoint=policy)
    for step in range(1, 8):
        kept.save(step, eval_loss=abs(step - 2))
        assert kept.saver.poll(wait=True) is None
    assert checkpoints.steps(kept.folder) == [7, 6, 3, 2]


def test_a_deletion_that_was_cut_off_leaves_no_checkpoint(tmp_path, monkeypatch):
    kept = Kept.of(tmp_path, checkpoint={"every_steps": 1, "keep": 1})
    kept.saved(1)
    with monkeypatch.context() as patch:
        patch.setattr(type(kept.checkpoints.folder), "rmtree", _delete_one_file)
        kept.saved(2)
    assert any("could not be deleted" in line for line in kept.said.lines)
    assert checkpoints.steps(kept.folder) == [2]
    (kept.folder / ".probe-0123-1").write_text("")
    (kept.folder / ".lease.json.0123").write_text("")
    Kept.of(tmp_path, attempt=2)
    assert sorted(path.name for path in kept.folder.iterdir()) == ["2", "lease.json"]


def _delete_one_file(folder: Path) -> None:
    (folder / "manifest.ocdbt").unlink()
    raise OSError("cut off")


def test_another_run_may_not_use_the_folder(tmp_path):
    storage = str(tmp_path / "shared")
    Kept.of(tmp_path / "one", storage=storage)
    with pytest.raises(OtherRunError, match="another run"):
        Kept.of(tmp_path / "two", storage=storage)


def test_an_older_attempt_may_not_come_back(tmp_path):
    Kept.of(tmp_path, attempt=2)
    with pytest.raises(StaleError, match="attempt 2 has taken over"):
        Kept.of(tmp_path, attempt=1)


def test_a_stale_attempt_commits_nothing(tmp_path):
    stale = Kept.of(tmp_path, attempt=1)
    Kept.of(tmp_path, attempt=2)
    stale.save(1)
    with pytest.raises(StaleError):
        stale.saver.poll(wait=True)
    assert checkpoints.steps(stale.folder) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot be written here"):
        Kept.of(tmp_path / "run", storage=str(tmp_path / "file"))


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


def test_a_full_disk_fails_one_save_and_the_next_succeeds_when_there_is_room(tmp_path, small_disk):
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
    assert restored and _equal(restored.state, state)


def test_a_failed_save_ends_the_run_where_the_job_says_so(tmp_path, small_disk):
    policy = {"every_steps": 1, "on_save_error": "stop"}
    kept = Kept.of(tmp_path / "run", storage=str(small_disk), checkpoint=policy)
    _fill(small_disk)
    kept.save(1)
    with pytest.raises(SaveError, match="could not be saved"):
        kept.saver.poll(wait=True)


def test_a_disk_without_room_for_two_is_refused(tmp_path, small_disk):
    (small_disk / "filler").write_bytes(b"x" * 2_600_000)
    with pytest.raises(FolderError, match="no room for two checkpoints"):
        Kept.of(tmp_path / "run", storage=str(small_disk))


def test_what_a_checkpoint_says_is_json(tmp_path):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    about = json.loads((kept.folder / "1" / "about.json").read_text())
    assert about["job"]["model"]["d_model"] == 32
    assert about["world"]["devices_per_host"] == 2 and about["mesh"]["fsdp"] == 2
    assert set(about["versions"]) >= {"jax", "orbax-checkpoint", "python"}
    assert set(about["files"]) >= {"manifest.ocdbt", "_METADATA"}
