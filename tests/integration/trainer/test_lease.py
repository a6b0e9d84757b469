"""Which run, and which of its attempts, may write into a folder of checkpoints."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.halts import Halt
from tests.support.saves import Kept, equal
from trainer.checkpoint import commit, conditional
from trainer.checkpoint.commit import TEMPORARY
from trainer.checkpoint.errors import OtherRunError, StaleError
from trainer.checkpoint.folder_check import remove_unfinished
from trainer.checkpoint.lease import LEASE, Lease
from trainer.contract.records import checkpoint_metadata
from trainer.contract.storage import durable_files

# Writes of a failed save that tensorstore still had under way come back, later, to an event loop
# that Orbax has closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@dataclass(frozen=True)
class StoreFolder:
    """A folder of an object store: files, which tensorstore gives generations as a store does."""

    url: str

    def __truediv__(self, name: str) -> "StoreFolder":
        return StoreFolder(f"{self.url}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> str:
        return self.url.rpartition("/")[0]


@pytest.fixture
def store(tmp_path) -> StoreFolder:
    return StoreFolder(f"file://{tmp_path}")


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
    assert checkpoint_metadata.steps(stale.folder) == []


@pytest.mark.parametrize("newer_saves", [True, False])
def test_a_stale_attempt_halted_right_before_its_commit_commits_nothing(
    tmp_path, monkeypatch, newer_saves
):
    """Its last look at the lease is past when a newer attempt takes over."""
    halt, looks = Halt(), itertools.count(1)
    is_last_look = lambda lease: lease.attempt == 1 and next(looks) == 3  # noqa: E731
    monkeypatch.setattr(Lease, "check", halt.after(Lease.check, is_last_look))
    stale = Kept.of(tmp_path, devices=2, attempt=1)
    stale.save(1)
    halt.wait()
    assert len([path for path in stale.folder.iterdir() if TEMPORARY in path.name]) == 1
    newer = Kept.of(tmp_path, devices=4, attempt=2, mesh={"tensor": 2})
    if newer_saves:
        state = newer.saved(1)
    halt.release()
    with pytest.raises(StaleError, match="taken over from attempt 1"):
        stale.saver.poll(wait=True)
    assert checkpoint_metadata.steps(stale.folder) == ([1] if newer_saves else [])
    restored = newer.restore()
    assert (restored is not None) == newer_saves
    assert restored is None or equal(restored.state, state)


def test_a_stale_attempt_deletes_nothing(tmp_path, monkeypatch):
    """A newer attempt takes over between its commit and its look for old checkpoints."""
    stale = Kept.of(tmp_path, checkpoint={"every_steps": 1, "keep": 1})
    stale.saved(1)

    def taken_over(folder: Path) -> None:
        Lease.take(folder, stale.checkpoints.lease.run_id, 2, print)

    monkeypatch.setattr(durable_files, "sync_all", lambda folder: None)
    monkeypatch.setattr(commit.durable_files, "sync", lambda folder: taken_over(folder))
    monkeypatch.setattr(durable_files, "replace", lambda path, text, label: path.write_text(text))
    stale.save(2)
    with pytest.raises(StaleError, match="attempt 2 has taken over"):
        stale.saver.poll(wait=True)
    assert checkpoint_metadata.steps(stale.folder) == [2, 1]


def test_what_a_newer_attempt_writes_is_not_removed(tmp_path):
    kept = Kept.of(tmp_path, attempt=2)
    left = ["5.orbax-checkpoint-tmp-1-ab-1", "5.orbax-checkpoint-tmp-2-ab-1", ".probe-1-ab-0"]
    newer = ["5.orbax-checkpoint-tmp-3-ab-1", ".lease.json.3-ab", ".probe-10-ab-0"]
    for name in left + newer:
        path = kept.folder / name
        path.write_text("") if name.startswith(".") else (path / "d").mkdir(parents=True)
    remove_unfinished(kept.checkpoints.folder, kept.checkpoints.lease)
    assert {path.name for path in kept.folder.iterdir()} == {*newer, "lease.json"}


@pytest.mark.parametrize("text", ["", '{"run_id": "1'])
def test_a_torn_lease_is_no_lease_and_is_reported(tmp_path, text):
    kept = Kept.of(tmp_path)
    (kept.folder / "lease.json").write_text(text)
    again = Kept.of(tmp_path, attempt=2)
    (line,) = [line for line in again.said.lines if "lease.json" in line]
    assert "replacing it with a new lease" in line
    again.checkpoints.lease.check(again.checkpoints.folder)
    with pytest.raises(StaleError):
        kept.checkpoints.lease.check(kept.checkpoints.folder)


def test_attempt_retakes_own_lease_and_its_first_process_is_stale(tmp_path):
    first = Lease.take(tmp_path, "run", 1, print)
    Lease.take(tmp_path, "run", 1, print).check(tmp_path)
    with pytest.raises(StaleError, match="attempt 1 has taken over"):
        first.check(tmp_path)


def test_the_label_of_a_lease_has_its_attempt_and_its_id():
    assert Lease("run", 3, "ab").label == "3-ab"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "is missing"),
        (" ", "is empty"),
        ("{", "cannot be parsed"),
        ("{}", "cannot be parsed"),
    ],
)
def test_a_lease_that_is_lost_is_held_no_more_and_says_why(tmp_path, text, problem):
    lease = Lease.take(tmp_path, "run", 1, print)
    (tmp_path / LEASE).unlink() if text is None else (tmp_path / LEASE).write_text(text)
    with pytest.raises(StaleError, match=f"lease.json {problem}: attempt 1 no longer holds"):
        lease.check(tmp_path)


def test_a_lease_of_a_folder_is_renewed_without_a_write(tmp_path):
    lease = Lease.take(tmp_path, "run", 1, print)
    before = (tmp_path / LEASE).stat()
    lease.renew(tmp_path)
    assert (tmp_path / LEASE).stat() == before


def test_renewed_lease_of_object_store_is_rewritten(store):
    lease = Lease.take(store, "run", 1, print)
    before = conditional.read(store / LEASE)
    lease.renew(store)
    after = conditional.read(store / LEASE)
    assert after.text == before.text and after.generation != before.generation


def test_a_lease_of_an_object_store_is_of_the_newest_attempt(store):
    first, second = (Lease.take(store, "run", attempt, print) for attempt in (1, 2))
    second.check(store)
    with pytest.raises(StaleError, match="attempt 2 has taken over"):
        first.renew(store)
    with pytest.raises(StaleError, match="attempt 2 has taken over"):
        Lease.take(store, "run", 1, print)


@pytest.mark.parametrize("act", ["take", "renew"])
def test_older_attempt_writing_second_loses_object_store(store, monkeypatch, act):
    """The newer attempt writes between the older one's look and its write."""
    lease, write = Lease.take(store, "run", 1, print), conditional.write

    def late(*arguments):
        monkeypatch.setattr(conditional, "write", write)
        Lease.take(store, "run", 2, print)
        return write(*arguments)

    monkeypatch.setattr(conditional, "write", late)
    with pytest.raises(StaleError, match="has taken over from attempt 1"):
        Lease.take(store, "run", 1, print) if act == "take" else lease.renew(store)
    assert '"attempt": 2' in str(conditional.read(store / LEASE).text)
