"""Checkpoints that are damaged, and trouble of storage that is no damage."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from tests.support.saves import Kept, equal
from trainer.checkpoint import restore
from trainer.checkpoint.errors import NoGoodCheckpointError, RestoreError
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.checkpoint_metadata import FormatError
from trainer.contract.storage.retries import StorageError
from trainer.distributed import consensus

# Writes of a failed save that tensorstore still had under way come back, later, to an event loop
# that Orbax has closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def no_pause_before_a_second_look(monkeypatch):
    monkeypatch.setattr(restore, "CONFIRM_S", 0.0)


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
    "truncated file": (_truncate, "bytes, expected"),
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
    assert restored and restored.about.step == 1 and equal(restored.state, state)
    assert (kept.folder / "2.damaged" / "problem.txt").exists()
    (warning,) = [line for line in kept.said.lines if "damaged" in line]
    assert "step 2 is damaged" in warning and said in warning


STALE = ValueError("ABORTED: Error reading local file: Stale file handle [os_error_code='116']")
NO_DAMAGE: dict[str, tuple[Exception, type[Exception], str]] = {
    "a stale handle": (STALE, StorageError, "Stale file handle"),
    "too many open files": (
        ValueError("RESOURCE_EXHAUSTED: Too many open files [os_error_code='24']"),
        StorageError,
        "Too many open files",
    ),
    "an error of the disk": (OSError(errno.EIO, "I/O error"), StorageError, "I/O error"),
    "no permission": (
        ValueError("PERMISSION_DENIED: Failed to open"), RestoreError, "does not prove damage",
    ),
    "no memory on the host": (MemoryError("cannot allocate"), RestoreError, "does not fit"),
    "no memory on the device": (
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4096 bytes"),
        RestoreError,
        "does not fit",
    ),
    "an error of the program": (TypeError("no such argument"), RestoreError, "TypeError"),
}  # fmt: skip


@pytest.mark.parametrize(("trouble", "kind", "said"), NO_DAMAGE.values(), ids=NO_DAMAGE)
def test_trouble_in_a_read_that_stays_ends_the_restore_and_moves_nothing(
    tmp_path, monkeypatch, trouble, kind, said
):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    before = sorted(path.name for path in kept.folder.iterdir())
    monkeypatch.setattr(restore, "pause", lambda tries: 0.0)
    monkeypatch.setattr(restore, "read_arrays", _raising(trouble))
    with pytest.raises(kind, match=said):
        kept.restore()
    assert sorted(path.name for path in kept.folder.iterdir()) == before


def test_transient_stale_handle_is_retried_and_newest_checkpoint_used(
    tmp_path, monkeypatch, caplog
):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    state = kept.saved(2)
    real, troubles = restore.read_arrays, [STALE, STALE]

    def read(*arguments):
        if troubles:
            raise troubles.pop()
        return real(*arguments)

    monkeypatch.setattr(restore, "read_arrays", read)
    monkeypatch.setattr(restore, "pause", lambda tries: 0.0)
    restored = kept.restore()
    assert restored and restored.about.step == 2 and equal(restored.state, state)
    assert len([text for text in caplog.messages if "Stale file handle" in text]) == 2


def test_storage_trouble_that_stays_is_met_ten_times_with_growing_pauses(tmp_path, monkeypatch):
    kept, reads, pauses = Kept.of(tmp_path), [], []
    kept.saved(1)

    def read(*arguments):
        reads.append(arguments)
        raise STALE

    monkeypatch.setattr(restore, "read_arrays", read)
    monkeypatch.setattr(restore, "pause", lambda tries: pauses.append(tries) or 0.0)
    with pytest.raises(StorageError):
        kept.restore()
    assert len(reads) == 10 and pauses == list(range(1, 10))


def test_a_folder_of_checkpoints_that_cannot_be_read_ends_the_restore(tmp_path, monkeypatch):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    monkeypatch.setattr(restore.checkpoint_metadata, "steps", _raising(PermissionError("denied")))
    with pytest.raises(RestoreError, match=r"cannot be read: PermissionError: denied"):
        kept.restore()


def test_damage_that_a_second_read_does_not_find_moves_nothing(tmp_path, monkeypatch):
    """What the kernel has cached of the files is forgotten in between, and only then."""
    kept, forgotten = Kept.of(tmp_path), []
    kept.saved(1)
    real, found = restore.changed, ["the data of one has changed"]

    def changed(*arguments):
        forgotten.append("read")
        return found.pop() if found else real(*arguments)

    monkeypatch.setattr(restore, "changed", changed)
    monkeypatch.setattr(restore, "forget_cached", lambda source: forgotten.append(source.name))
    restored = kept.restore()
    assert restored and restored.about.step == 1
    assert forgotten == ["read", "1", "read"]
    assert [path.name for path in kept.folder.glob("1*")] == ["1"]


def test_a_file_that_a_second_look_finds_moves_nothing(tmp_path, monkeypatch):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    (kept.folder / "1" / "manifest.ocdbt").rename(tmp_path / "manifest")

    def file_appears(seconds):
        (tmp_path / "manifest").rename(kept.folder / "1" / "manifest.ocdbt")

    # Not the module itself: threads of earlier saves sleep, too.
    monkeypatch.setattr(restore, "time", SimpleNamespace(sleep=file_appears))
    with pytest.raises(RestoreError, match="a second read finds it whole"):
        kept.restore()
    monkeypatch.undo()
    assert [path.name for path in kept.folder.glob("1*")] == ["1"]


def test_trouble_in_the_second_look_ends_the_restore_and_moves_nothing(tmp_path, monkeypatch):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    (kept.folder / "1" / "manifest.ocdbt").unlink()

    def storage_fails(seconds):
        monkeypatch.setattr(
            restore.checkpoint_metadata, "read", _raising(PermissionError("denied"))
        )

    monkeypatch.setattr(restore, "time", SimpleNamespace(sleep=storage_fails))
    with pytest.raises(RestoreError, match=r"denied\. This does not prove damage"):
        kept.restore()
    assert [path.name for path in kept.folder.glob("1*")] == ["1"]


def test_a_step_that_is_damaged_again_is_moved_aside_under_the_next_name(tmp_path):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    kept.saved(2)
    _remove_a_file(kept.folder / "2")
    shutil.copytree(kept.folder / "2", tmp_path / "damaged")
    for name in ("2.damaged", "2.damaged.2", "2.damaged.3"):
        shutil.copytree(tmp_path / "damaged", kept.folder / "2", dirs_exist_ok=True)
        restored = kept.restore()
        assert restored and restored.about.step == 1
        assert (kept.folder / name / checkpoint_metadata.PROBLEM).exists()


def test_a_damaged_checkpoint_that_cannot_be_moved_aside_ends_the_restore(tmp_path):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    _remove_a_file(kept.folder / "1")
    (kept.folder / "1" / checkpoint_metadata.PROBLEM).mkdir()
    with pytest.raises(RestoreError, match="IsADirectoryError"):
        kept.restore()


def test_process_0_and_the_last_one_look_a_second_time(tmp_path, monkeypatch):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    restorer = kept.checkpoints.restorer(kept.said)
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    for process in (0, 2):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        with pytest.raises(RestoreError, match="a second read finds it whole"):
            restorer._confirm(1, "a file is missing")
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    restorer._confirm(1, "a file is missing")


def test_every_agreement_of_a_restore_has_a_name_of_its_own(tmp_path, monkeypatch):
    kept, names, real = Kept.of(tmp_path), [], consensus.agree
    kept.saved(1)
    kept.saved(2)
    _remove_a_file(kept.folder / "2")
    monkeypatch.setattr(consensus, "agree", lambda *about: (names.append(about[0]), real(*about)))
    assert kept.restore()
    assert len(names) == len(set(names)) == 6


def test_all_processes_know_the_kind_of_an_error(tmp_path, monkeypatch):
    kept, errors, real = Kept.of(tmp_path), [], consensus.agree
    kept.saved(1)
    _spoil_orbax_metadata(kept.folder / "1")

    def agree(name, error, kinds, limit_s):
        errors.extend([(error, kinds)] if error else [])
        real(name, error, kinds, limit_s)

    monkeypatch.setattr(consensus, "agree", agree)
    with pytest.raises(NoGoodCheckpointError):
        kept.restore()
    assert len(errors) == 2
    assert all(isinstance(error, kinds) for error, kinds in errors)


def test_a_folder_that_cannot_be_listed_is_not_a_checkpoint_without_files(tmp_path, monkeypatch):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    real = os.scandir

    def scandir(path):
        if str(path).endswith("/d/"):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return real(path)

    monkeypatch.setattr(checkpoint_metadata.os, "scandir", scandir)
    with pytest.raises(OSError, match="Stale file handle"):
        checkpoint_metadata.read(kept.folder / "1")


def test_a_checkpoint_of_another_format_is_neither_read_nor_moved(tmp_path):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    path = kept.folder / "1" / checkpoint_metadata.ABOUT
    path.write_text(path.read_text().replace('"format": 1,', '"format": 2, "new_key": [],'))
    with pytest.raises(FormatError, match=r"has checkpoint format 2, and .* reads format 1"):
        kept.restore()
    assert checkpoint_metadata.steps(kept.folder) == [1]


def _raising(error: Exception) -> Callable[..., None]:
    def read(*arguments: object) -> None:
        raise error

    return read


ARRAY = "params.final_norm.scale"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda array: {"digest": array.digest ^ 1}, rf"the data of {ARRAY} has changed"),
        (lambda array: {"dtype": "int8"}, rf"{ARRAY} is int8, expected float32"),
        (lambda array: None, rf"{ARRAY} is missing"),
    ],
    ids=["digest", "dtype", "absent"],
)
def test_an_array_that_is_not_as_saved_is_named(tmp_path, change, said):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    about = checkpoint_metadata.read(kept.folder / "1")
    arrays = dict(about.arrays)
    array = arrays.pop(ARRAY)
    if changes := change(array):
        arrays[ARRAY] = array.model_copy(update=changes)
    text = about.model_copy(update={"arrays": arrays}).model_dump_json()
    (kept.folder / "1" / "about.json").write_text(text)
    with pytest.raises(NoGoodCheckpointError, match=said):
        kept.restore()


def test_run_with_only_damaged_checkpoints_never_starts_from_scratch(tmp_path):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    _truncate(kept.folder / "1")
    for _ in range(2):
        with pytest.raises(NoGoodCheckpointError, match="Nothing was deleted"):
            kept.restore()
