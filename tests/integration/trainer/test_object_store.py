"""Checkpoints on gs://, through tensorstore and gcsfs, as far as a stand-in for the store goes.

    uv run --group object_store pytest -m object_store

Not selected by default: gcsfs brings 30 packages. See bucket.py for what the stand-in does.
"""

import json
import sys

import jax
import numpy as np
import pytest

from tests.support import gang
from tests.support import object_store_server as stand_in
from tests.support.halts import Halt
from tests.support.jobs import job_of, world_of
from tests.support.object_store_server import Bucket
from tests.support.sampling import sampled
from tests.support.saves import Kept
from trainer.checkpoint import conditional
from trainer.checkpoint.errors import FolderError, OtherRunError, StaleError
from trainer.checkpoint.folder_check import remove_unfinished
from trainer.checkpoint.lease import Lease
from trainer.checkpoint.weights import initial
from trainer.contract.records import checkpoint_metadata
from trainer.contract.storage.paths import to_path
from trainer.tools import verify_checkpoint

pytestmark = pytest.mark.object_store

STEPS = "tiny/checkpoints"


def _equal(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def _names(bucket: Bucket, kept: Kept) -> set[str]:
    """What lies beside the steps."""
    prefix = f"{kept.checkpoints.folder}/".removeprefix(f"gs://{stand_in.NAME}/")
    return {name.removeprefix(prefix).split("/")[0] for name in bucket.names(prefix)}


def _objects(bucket: Bucket, kept: Kept, step: int) -> list[str]:
    root = str(kept.checkpoints.folder).removeprefix(f"gs://{stand_in.NAME}/")
    return bucket.names(f"{root}/{step}/")


def test_what_is_saved_is_restored_on_another_mesh(tmp_path, storage):
    state = Kept.of(tmp_path, devices=2, storage=storage).saved(2)
    kept = Kept.of(tmp_path, devices=4, attempt=2, storage=storage, mesh={"tensor": 2})
    restored = kept.restore()
    assert restored and restored.about.step == 2 and _equal(restored.state, state)
    assert str(kept.checkpoints.folder) == f"{storage}/{STEPS}"


def test_two_hosts_save_and_one_goes_on(tmp_path, storage):
    job = job_of(steps=2, storage=storage, checkpoint={"every_steps": 1, "keep": 1})
    first = gang.run(job, world_of(2, 1), tmp_path)
    assert first.codes == [0, 0], first.outputs
    more = job.model_copy(update={"steps": 3})
    second = gang.run(more, world_of(1, 2), tmp_path, attempt=2)
    assert second.codes == [0], second.outputs
    assert [line["step"] for line in second.steps()] == [1, 2, 3]
    assert "restored step 2" in second.outputs[0]


def test_what_others_write_is_seen_at_once(storage, bucket):
    folder = to_path(storage)
    bucket.put(f"{storage.removeprefix('gs://bucket/')}/1/about.json", b"{}")
    assert checkpoint_metadata.steps(folder) == [1]
    bucket.put(f"{storage.removeprefix('gs://bucket/')}/2/about.json", b"{}")
    assert checkpoint_metadata.steps(folder) == [2, 1]


def _truncate(bucket: Bucket, names: list[str]) -> None:
    name = max(names, key=lambda name: len(bucket.objects[name][0]))
    bucket.put(name, bucket.objects[name][0][:-7])


def _flip_a_bit(bucket: Bucket, names: list[str]) -> None:
    name = max(names, key=lambda name: len(bucket.objects[name][0]))
    content = bytearray(bucket.objects[name][0])
    content[len(content) // 2] ^= 0x10
    bucket.put(name, bytes(content))


def _remove(bucket: Bucket, names: list[str]) -> None:
    del bucket.objects[next(name for name in names if name.endswith("manifest.ocdbt"))]


DAMAGE = {
    "truncated": (_truncate, "bytes, expected"),
    "flipped bit": (_flip_a_bit, ""),
    "removed": (_remove, "manifest.ocdbt is missing"),
}


@pytest.mark.parametrize(("damage", "said"), sampled(DAMAGE, ("flipped bit",)))
def test_a_damaged_checkpoint_is_moved_aside(tmp_path, storage, bucket, damage, said):
    kept = Kept.of(tmp_path, storage=storage)
    state = kept.saved(1)
    kept.saved(2)
    before = len(_objects(bucket, kept, 2))
    damage(bucket, _objects(bucket, kept, 2))
    restored = kept.restore()
    assert restored and restored.about.step == 1 and _equal(restored.state, state)
    (warning,) = [line for line in kept.said.lines if "damaged" in line]
    assert "step 2 is damaged" in warning and said in warning
    assert _names(bucket, kept) == {"1", "2.damaged", "lease.json"}
    moved = bucket.names(f"{tmp_path.name}/{STEPS}/2.damaged/")
    assert f"{tmp_path.name}/{STEPS}/2.damaged/problem.txt" in moved
    assert len(moved) == before + (0 if damage is _remove else 1)
    kept.saved(2)


def test_only_what_the_policy_keeps_stays(tmp_path, storage, bucket):
    kept = Kept.of(tmp_path, storage=storage, checkpoint={"every_steps": 1, "keep": 2})
    for step in (1, 2, 3):
        kept.saved(step)
    assert checkpoint_metadata.steps(kept.checkpoints.folder) == [3, 2]
    assert _names(bucket, kept) == {"2", "3", "lease.json"}


def test_a_stale_attempt_commits_nothing(tmp_path, storage, bucket):
    stale = Kept.of(tmp_path, attempt=1, storage=storage)
    Kept.of(tmp_path, attempt=2, storage=storage)
    stale.save(1)
    with pytest.raises(StaleError, match="attempt 2 has taken over"):
        stale.saver.poll(wait=True)
    assert checkpoint_metadata.steps(stale.checkpoints.folder) == []
    assert stale.restore() is None
    third = Kept.of(tmp_path, attempt=3, storage=storage)
    assert _names(bucket, third) == {"lease.json"}


@pytest.mark.parametrize("method", ["check", "renew"])
def test_a_stale_attempt_halted_right_before_its_commit_changes_nothing(
    tmp_path, storage, bucket, monkeypatch, method
):
    halt = Halt()
    halting = halt.after(getattr(Lease, method), lambda lease: lease.attempt == 1)
    stale = Kept.of(tmp_path, devices=2, attempt=1, storage=storage)
    monkeypatch.setattr(Lease, method, halting)
    stale.save(1)
    halt.wait()
    newer = Kept.of(tmp_path, devices=4, attempt=2, mesh={"tensor": 2}, storage=storage)
    state = newer.saved(1)
    whole = {name: bucket.objects[name] for name in _objects(bucket, newer, 1)}
    halt.release()
    with pytest.raises(StaleError, match="taken over from attempt 1"):
        stale.saver.poll(wait=True)
    found = {name: bucket.objects[name] for name in _objects(bucket, newer, 1)}
    assert {name: found[name] for name in whole} == whole
    third = Kept.of(tmp_path, devices=2, attempt=3, storage=storage)
    restored = third.restore()
    assert restored and _equal(restored.state, state)
    assert set(_objects(bucket, third, 1)) == set(whole), "what attempt 1 left is removed"


def test_a_stale_attempt_deletes_nothing(tmp_path, storage, monkeypatch):
    """A newer attempt takes over between its commit and its look for old checkpoints."""
    stale = Kept.of(tmp_path, storage=storage, checkpoint={"every_steps": 1, "keep": 1})
    stale.saved(1)
    create, lease = conditional.create, stale.checkpoints.lease

    def created(path, text):
        assert create(path, text)
        return Lease.take(stale.checkpoints.folder, lease.run_id, 2, print)

    monkeypatch.setattr(conditional, "create", created)
    stale.save(2)
    with pytest.raises(StaleError, match="attempt 2 has taken over"):
        stale.saver.poll(wait=True)
    assert checkpoint_metadata.steps(stale.checkpoints.folder) == [2, 1]


def test_what_a_newer_attempt_writes_is_not_removed(tmp_path, storage, bucket):
    kept = Kept.of(tmp_path, attempt=2, storage=storage)
    kept.saved(1)
    (about,) = [name for name in _objects(bucket, kept, 1) if name.endswith("/about.json")]
    step = about.removesuffix("/about.json")
    before = set(_objects(bucket, kept, 1))
    bucket.put(f"{step}/3-ab-1/d/0", b"newer")
    bucket.put(f"{step}/1-ab-1/d/0", b"left by a dead one")
    remove_unfinished(kept.checkpoints.folder, kept.checkpoints.lease)
    assert set(_objects(bucket, kept, 1)) == {*before, f"{step}/3-ab-1/d/0"}


@pytest.mark.parametrize("text", [b"", b'{"run_id": "1'])
def test_a_torn_lease_is_no_lease_and_is_reported(tmp_path, storage, bucket, text):
    Kept.of(tmp_path, storage=storage)
    (name,) = [name for name in bucket.names(tmp_path.name) if name.endswith("lease.json")]
    bucket.put(name, text)
    again = Kept.of(tmp_path, attempt=2, storage=storage)
    assert any("replacing it with a new lease" in line for line in again.said.lines)
    again.saved(1)


def test_a_commit_whose_answer_was_lost_is_a_commit(storage, bucket):
    """The store has it, and refuses the same write when it is sent again."""
    path = to_path(storage) / "about.json"
    assert conditional.create(path, "one")
    assert conditional.create(path, "one")
    assert not conditional.create(path, "another")
    assert not conditional.write(
        path, "another", generation=conditional.read(path / "x").generation
    )
    assert conditional.read(path).text == "one"


def test_the_folder_is_one_run_s_and_its_newest_attempt_s(tmp_path, storage):
    Kept.of(tmp_path / "one", attempt=2, storage=storage)
    with pytest.raises(StaleError, match="attempt 2 has taken over"):
        Kept.of(tmp_path / "one", attempt=1, storage=storage)
    with pytest.raises(OtherRunError, match="another run"):
        Kept.of(tmp_path / "two", storage=storage)


@pytest.mark.parametrize("left", ["a few objects", "all but about.json"])
def test_a_save_that_died_is_no_checkpoint_and_no_damage(tmp_path, storage, bucket, left):
    kept = Kept.of(tmp_path, storage=storage)
    state = kept.saved(1)
    kept.saved(2)
    gone = [name for name in _objects(bucket, kept, 2) if name.endswith("/about.json")]
    if left == "a few objects":
        gone = _objects(bucket, kept, 2)[::2] + gone
    for name in gone:
        bucket.objects.pop(name, None)
    restored = kept.restore()
    assert restored and restored.about.step == 1 and _equal(restored.state, state)
    assert not [line for line in kept.said.lines if "damaged" in line]
    again = Kept.of(tmp_path, attempt=2, storage=storage)
    assert _names(bucket, again) == {"1", "lease.json"}
    state = again.saved(2)
    restored = again.restore()
    assert restored and restored.about.step == 2 and _equal(restored.state, state)


# Writes that tensorstore still had under way come back to an event loop that Orbax has closed.
late_writes = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@late_writes
@pytest.mark.parametrize("writes", [1, 20])
def test_a_store_that_refuses_fails_one_save_and_the_run_goes_on(tmp_path, storage, bucket, writes):
    """In the middle of a save at several places; what is left cannot be cleaned up then."""
    kept = Kept.of(tmp_path, storage=storage)
    state = kept.saved(1)
    bucket.writes_left = writes
    kept.save(2)
    assert kept.saver.poll(wait=True) is not None
    assert any("step 2 NOT saved" in line for line in kept.said.lines)
    restored = kept.restore()
    assert restored and restored.about.step == 1 and _equal(restored.state, state)
    bucket.writes_left = float("inf")
    state = kept.saved(3)
    restored = kept.restore()
    assert restored and restored.about.step == 3 and _equal(restored.state, state)


@late_writes
def test_a_bucket_that_is_gone_fails_the_save_and_is_not_made_again(tmp_path, storage, bucket):
    kept = Kept.of(tmp_path, storage=storage)
    kept.saved(1)
    bucket.status = 404
    kept.save(2)
    assert kept.saver.poll(wait=True) is not None
    assert any("step 2 NOT saved" in line for line in kept.said.lines)
    bucket.status = 200
    kept.saved(3)
    assert checkpoint_metadata.steps(kept.checkpoints.folder) == [3, 1]


def test_a_bucket_that_is_not_there_is_refused(tmp_path, bucket):
    with pytest.raises(FolderError, match="the bucket does not exist"):
        Kept.of(tmp_path, storage="gs://another/x")


def test_one_that_is_read_only_is_refused(tmp_path, storage, bucket):
    bucket.writes_left = 0
    with pytest.raises(FolderError, match=r"cannot write checkpoints: .*PERMISSION_DENIED"):
        Kept.of(tmp_path, storage=storage)


def test_weights_alone_are_read_and_checked(tmp_path, storage, monkeypatch, capsys):
    kept = Kept.of(tmp_path, storage=storage)
    state = kept.saved(1)
    params = initial(f"{storage}/tiny", kept.made.program).params
    assert _equal(params, state.params)
    monkeypatch.setattr(sys, "argv", ["verify", f"{storage}/{STEPS}/1"])
    assert verify_checkpoint.main() == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"folder": f"{storage}/{STEPS}/1", "ok": True, "problem": ""}
