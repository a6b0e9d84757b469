"""Weights without the rest: fine-tuning from them, checking and exporting them."""

import errno
import json
import os
import shutil

import numpy as np
import pytest

from tests.support.saves import Kept
from trainer.checkpoint.errors import FolderError
from trainer.checkpoint.initial_state import begin
from trainer.checkpoint.tree import flatten
from trainer.checkpoint.weights import initial
from trainer.contract.hugging_face.config import is_hugging_face
from trainer.contract.storage.retries import StorageError
from trainer.tools import export_checkpoint, verify_checkpoint


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of two steps and its checkpoint; its state on the host."""
    run_dir = tmp_path_factory.mktemp("saved")
    kept = Kept.of(run_dir)
    return kept, kept.saved(2), run_dir


def _begin(source, run_dir, **changes):
    policy = {"every_steps": 1, "init_from": str(source)}
    kept = Kept.of(run_dir, 4, checkpoint=policy, mesh={"tensor": 2}, **changes)
    made = kept.made
    restorer = kept.checkpoints.restorer(kept.said)
    return begin(made.program, made.plan, restorer, kept.said, kept.said.events)


@pytest.mark.parametrize("place", ["", "checkpoints", "checkpoints/2"])
def test_a_run_starts_from_the_weights_of_another_with_the_rest_new(saved, tmp_path, place):
    _, state, run_dir = saved
    start = _begin(run_dir / place, tmp_path / "new")
    assert (start.step, start.examples, int(start.state.step)) == (0, 0, 0)
    for name, array in start.state.params.items():
        np.testing.assert_array_equal(array, state.params[name])
    moments = {n: a for n, a in flatten(start.state).items() if n.startswith("optimizer.")}
    assert moments and not any(np.any(array) for array in moments.values())


def test_weights_go_out_and_come_back_through_a_hugging_face_folder(saved, tmp_path):
    kept, state, _ = saved
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["export", str(kept.folder / "2"), "--to", str(tmp_path / "out")])
        assert export_checkpoint.main() == 0
    assert is_hugging_face(tmp_path / "out")
    start = _begin(tmp_path / "out", tmp_path / "new")
    for name, array in start.state.params.items():
        np.testing.assert_array_equal(array, state.params[name])


def test_an_export_is_repeated_only_as_far_as_it_is_missing(saved, tmp_path):
    kept, _, _ = saved
    first, second = kept.folder / "2", tmp_path / "copy" / "2"
    shutil.copytree(first, second)
    whole, cut_off, other = (tmp_path / name for name in ("whole", "cut_off", "other"))
    export_checkpoint.export_hugging_face(first, whole)
    before = {path: path.stat().st_mtime_ns for path in whole.iterdir()}
    export_checkpoint.export_hugging_face(first, whole)
    assert {path: path.stat().st_mtime_ns for path in whole.iterdir()} == before
    with pytest.raises(FileExistsError, match="not empty"):
        export_checkpoint.export_hugging_face(second, whole)
    shutil.copytree(whole, cut_off)
    (cut_off / "export.json").rename(cut_off / ".export.json")
    (cut_off / "model.safetensors").write_bytes(b"half of it")
    export_checkpoint.export_hugging_face(second, cut_off)
    export_checkpoint.export_hugging_face(second, other)
    assert all((cut_off / path.name).read_bytes() == path.read_bytes() for path in other.iterdir())


def test_weights_of_another_model_are_refused(saved, tmp_path):
    _, _, run_dir = saved
    with pytest.raises(FolderError, match=r"init_from: model\.d_ff: 64 -> 128"):
        _begin(run_dir, tmp_path / "new", model={"d_ff": 128})


def test_a_place_without_weights_is_refused(saved, tmp_path):
    kept, _, _ = saved
    with pytest.raises(FolderError, match="neither a checkpoint nor a folder that contains one"):
        initial(str(tmp_path), kept.made.program)


def test_a_stale_handle_of_the_weights_is_a_crash_and_no_bad_configuration(
    saved, tmp_path, monkeypatch
):
    kept, _, run_dir = saved

    def fail(*_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr("trainer.checkpoint.weights.read_arrays", fail)
    with pytest.raises(StorageError, match=r"init_from: .*Stale file handle"):
        initial(str(run_dir), kept.made.program)


def test_verify_reads_every_byte(tmp_path, capsys, monkeypatch):
    kept = Kept.of(tmp_path)
    kept.saved(1)
    kept.saved(2)
    path = max((kept.folder / "2").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    folders = [str(kept.folder / step) for step in ("1", "2")]
    monkeypatch.setattr("sys.argv", ["verify", *folders])
    assert verify_checkpoint.main() == 1
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {"folder": folders[0], "ok": True, "problem": ""}
    assert second["folder"] == folders[1] and not second["ok"] and second["problem"]
