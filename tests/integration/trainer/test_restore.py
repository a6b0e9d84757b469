"""Restoring the state: on any mesh, a part of the arrays at a time."""

import errno

import jax
import numpy as np
import pytest

from tests.support.checkpoint_metadata_builders import about_of
from tests.support.saves import Kept, equal
from tests.support.worlds import cpu_world, tiny_job
from trainer.checkpoint import restore, saver, tree
from trainer.checkpoint.lease import Lease
from trainer.contract.config.loader import ConfigError
from trainer.contract.storage import retries


def test_a_restore_reads_a_part_of_the_arrays_at_a_time(tmp_path):
    shapes = {name: jax.ShapeDtypeStruct((100 + n,), "float32") for n, name in enumerate("abcdef")}
    shardings = dict.fromkeys(shapes, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    shapes["large"] = jax.ShapeDtypeStruct((400,), "float32")
    shardings["large"] = shardings["a"]
    groups = list(tree.groups(shapes, shardings, parts=4))
    assert groups == [["large"], ["f", "e"], ["d", "c"], ["b", "a"]]


def test_a_part_is_measured_in_bytes_and_may_be_full():
    shapes = {
        "a": jax.ShapeDtypeStruct((100,), "float32"),
        "b": jax.ShapeDtypeStruct((200,), "bfloat16"),
        "c": jax.ShapeDtypeStruct((400,), "int8"),
        "d": jax.ShapeDtypeStruct((100,), "int32"),
    }
    shardings = dict.fromkeys(shapes, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    assert list(tree.groups(shapes, shardings, parts=2)) == [["a", "b"], ["c", "d"]]


def test_a_restore_says_on_which_hosts_and_mesh_the_checkpoint_was_saved():
    about = about_of(tiny_job(), step=400, mesh={"data": 1, "fsdp": 4, "tensor": 2})
    same = "restored step 400, saved on 2 hosts x 4 devices (fsdp 4, tensor 2)"
    assert restore.moved(about, about.world, about.mesh) == same
    now = restore.moved(about, cpu_world(1, 1), {"data": 1, "fsdp": 1})
    assert now == f"{same}, now on 1 x 1 (one device)"
    smaller = restore.moved(about, cpu_world(1, 2), {"fsdp": 2})
    assert smaller == f"{same}, now on 1 x 2 (fsdp 2)"


@pytest.fixture
def stale_leases(monkeypatch):
    """The next takes of the lease, so many of them, give ESTALE; retries do not pause."""
    monkeypatch.setattr(retries, "pause", lambda tries: 0.0)
    take = Lease.take

    def fail(times):
        left = [times]

        def taken(*arguments):
            left[0] -= 1
            if left[0] >= 0:
                raise OSError(errno.ESTALE, "Stale file handle")
            return take(*arguments)

        monkeypatch.setattr(Lease, "take", taken)

    return fail


def test_a_stale_handle_at_the_start_is_retried(tmp_path, stale_leases):
    stale_leases(3)
    kept = Kept.of(tmp_path)
    assert kept.restore() is None
    state, restored = kept.saved(1), kept.restore()
    assert restored and equal(restored.state, state)


def test_one_that_stays_is_trouble_of_storage_and_not_a_bad_folder(
    tmp_path, stale_leases, monkeypatch
):
    monkeypatch.setattr(retries, "PATIENCE_S", 0.0)
    stale_leases(10**9)
    with pytest.raises(retries.StorageError, match="Stale file handle"):
        Kept.of(tmp_path)


def test_without_a_checkpoint_there_is_nothing_to_restore(tmp_path):
    assert Kept.of(tmp_path).restore() is None


def test_what_is_restored_is_what_was_saved(tmp_path):
    kept = Kept.of(tmp_path)
    state = kept.saved(2)
    restored = kept.restore()
    assert restored and equal(restored.state, state)
    assert (restored.about.step, restored.about.examples, restored.notes) == (2, 16, [])
    assert restored.about.arrays["params.embedding.table"].shape == (384, 32)


@pytest.mark.parametrize(("devices", "mesh"), [(1, {}), (4, {"tensor": 2}), (5, {"tensor": 5})])
def test_it_lies_on_the_mesh_of_the_run_that_restores(tmp_path, devices, mesh):
    """Five tensor ranks pad the vocabulary to another length."""
    model = {"d_model": 40, "heads": 10, "kv_heads": 10, "head_dim": 8, "d_ff": 80}
    state = Kept.of(tmp_path, devices=2, model=model).saved(1)
    kept = Kept.of(tmp_path, devices, attempt=2, model=model, mesh=mesh)
    restored = kept.restore()
    assert restored
    for name, array in restored.state.params.items():
        assert array.sharding == kept.made.program.shardings.params[name]
        rows = min(len(array), len(state.params[name]))
        np.testing.assert_array_equal(array[:rows], state.params[name][:rows])
        assert not np.any(array[rows:])


def test_arrays_saved_in_pieces_are_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(saver, "CHUNK_BYTES", 1000)
    state = Kept.of(tmp_path, devices=2).saved(1)
    restored = Kept.of(tmp_path, devices=4, attempt=2, mesh={"tensor": 2}).restore()
    assert restored and equal(restored.state, state)


@pytest.mark.slow
def test_a_run_on_parts_of_sequences_goes_on_without_them(tmp_path):
    state = Kept.of(tmp_path, devices=4, mesh={"context": 2}).saved(1)
    restored = Kept.of(tmp_path, devices=2, attempt=2, mesh={"tensor": 2}).restore()
    assert restored and equal(restored.state, state)


def test_another_model_is_refused_and_a_learning_rate_is_said(tmp_path):
    Kept.of(tmp_path).saved(1)
    wider = Kept.of(tmp_path, attempt=2, model={"d_ff": 128})
    with pytest.raises(ConfigError, match=r"model\.d_ff: 64 -> 128"):
        wider.restore()
    restored = Kept.of(tmp_path, attempt=3, optimizer={"learning_rate": 1e-4}).restore()
    assert restored and restored.notes == ["optimizer.learning_rate: 0.003 -> 0.0001"]
