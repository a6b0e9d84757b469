"""The making of a cache of tokens: interrupted, shared, cleaned up, and when it is made anew."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from tests.support.processes import wait_until
from trainer.contract.config.data import Data
from trainer.contract.storage.corpus import DataError
from trainer.data import cache_lock, token_cache, token_shards

SHARD_BYTES = 1000
MAKER = """
import sys, time
from pathlib import Path
from trainer.data import cache_lock, token_cache, token_shards
from trainer.contract.config.data import Data

token_shards.SHARD_BYTES = int(sys.argv[2])
cache_lock.PROGRESS_EVERY_S = 0.0

def stop_in_the_middle(done, total, builder):
    if 2 * done > total:
        Path(sys.argv[3]).touch()
        while not Path(sys.argv[4]).exists():
            time.sleep(0.01)

token_cache.load(Data.model_validate_json(sys.argv[1]), stop_in_the_middle)
"""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_shards, "SHARD_BYTES", SHARD_BYTES)
    monkeypatch.setattr(cache_lock, "PROGRESS_EVERY_S", 0.0)


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Has this process keep its caches in another folder; returns the one of tokens."""

    def use(name: str) -> Path:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        return tmp_path / name / "slipway" / "tokens"

    return use


def corpus(folder: Path, records: int = 200, **settings: Any) -> Data:
    folder.mkdir(exist_ok=True)
    for file in range(2):
        lines = [{"text": f"{file} {n} " * (n % 13), "body": "b" * 40} for n in range(records)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{file}.jsonl").write_text(text)
    sizes = {"source": "jsonl", "path": str(folder / "*.jsonl"), "seq_len": 8, "global_batch": 1}
    return Data.model_validate({**sizes, "validation_fraction": 0.1, **settings})


class Maker:
    """A process that makes a cache and stops in the middle until it is let go."""

    def __init__(self, data: Data, folder: Path) -> None:
        self._stopped, self._go = folder / "stopped", folder / "go"
        words = [data.model_dump_json(), str(SHARD_BYTES), str(self._stopped), str(self._go)]
        self.process = subprocess.Popen([sys.executable, "-c", MAKER, *words])
        wait_until(lambda: self._stopped.exists() or self.process.poll() is not None)
        assert self.process.poll() is None

    def go_on(self) -> None:
        self._go.touch()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait() == -signal.SIGKILL


def content(tokens: Path) -> dict[str, bytes]:
    """Of the one cache that is there."""
    (folder,) = tokens.iterdir()
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def written(tokens: Path) -> dict[str, int]:
    """Name of each finished piece -> when it was written."""
    return {path.name: path.stat().st_mtime_ns for path in tokens.glob("*.making/shards/*.npz")}


def test_after_kill_9_the_next_one_goes_on_and_the_cache_is_the_same(
    tmp_path: Path, caches: Callable[[str], Path]
) -> None:
    data = corpus(tmp_path / "corpus")
    whole = caches("whole")
    token_cache.load(data)
    torn = caches("torn")
    Maker(data, tmp_path).kill()
    before, after, done = written(torn), dict[str, int](), list[int]()
    assert len(before) > 5

    def progress(now: int, total: int, builder: str) -> None:
        done.append(now)
        if now < total:
            after.update(written(torn))

    token_cache.load(data, progress)
    assert done[0] > done[-1] / 2 and done == sorted(done)
    assert len(after) > len(before) and before.items() <= after.items()
    assert content(torn) == content(whole)


def test_the_size_of_shards_changes_no_byte(
    tmp_path: Path, caches: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, found = corpus(tmp_path / "corpus"), []
    for size in (100, 700, 1 << 20):
        monkeypatch.setattr(token_shards, "SHARD_BYTES", size)
        tokens = caches(str(size))
        token_cache.load(data)
        found.append(content(tokens))
    assert found[0] == found[1] == found[2]


def test_waiting_process_reports_maker_and_progress(
    tmp_path: Path, caches: Callable[[str], Path]
) -> None:
    caches("cache")
    data = corpus(tmp_path / "corpus")
    maker, heard = Maker(data, tmp_path), []

    def progress(done: int, total: int, who: str) -> None:
        heard.append((done / total, who))
        maker.go_on()

    tokens = token_cache.load(data, progress)
    share, who = heard[0]
    assert who.startswith(f"process {maker.process.pid} of ") and 0.5 < share < 1
    assert {name for _, name in heard} == {who}
    assert maker.process.wait() == 0
    assert len(tokens.held_in) > 1000


def test_waiting_process_takes_over_from_killed_maker(
    tmp_path: Path, caches: Callable[[str], Path]
) -> None:
    tokens = caches("cache")
    data = corpus(tmp_path / "corpus")
    maker, heard = Maker(data, tmp_path), []

    def progress(done: int, total: int, who: str) -> None:
        if who:
            maker.kill()
        heard.append((done, who))

    token_cache.load(data, progress)
    (before, _), (first, who) = next(pair for pair in pairwise(heard) if not pair[1][1])
    assert not who and first >= before > 0
    assert set(content(tokens)) == {
        "held_in.npy", "held_out.npy", "documents.npy", "bad_records.json"
    }  # fmt: skip


def test_wait_for_stuck_maker_ends_and_names_it(
    tmp_path: Path, caches: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    caches("cache")
    data = corpus(tmp_path / "corpus")
    maker = Maker(data, tmp_path)
    monkeypatch.setattr(cache_lock, "DEADLINE_S", 0.2)
    with pytest.raises(TimeoutError, match=f"process {maker.process.pid} of .* no progress"):
        token_cache.load(data)
    maker.kill()


def tokenizer_file(path: Path, words: str = "0 1 2") -> Path:
    names = ["</s>", "<eos>", *words.split()]
    model = models.WordLevel({name: n for n, name in enumerate(names)}, unk_token="</s>")
    Tokenizer(model).save(str(path))
    return path


def made_anew(data: Data) -> bool:
    calls = []
    token_cache.load(data, lambda *told: calls.append(told))
    return bool(calls)


def test_what_is_unchanged_is_read_again_wherever_it_lies(
    tmp_path: Path, caches: Callable[[str], Path]
) -> None:
    caches("cache")
    file = tokenizer_file(tmp_path / "tokenizer.json")
    data = corpus(tmp_path / "corpus", tokenizer=str(file))
    assert made_anew(data) and not made_anew(data)
    moved = corpus(tmp_path / "moved", tokenizer=str(file.rename(tmp_path / "other.json")))
    assert not made_anew(moved)
    assert not made_anew(moved.model_copy(update={"seq_len": 4, "max_bad_records": 7}))


@pytest.mark.parametrize(
    "change", ["text_field", "validation_fraction", "eos_token", "file", "tokenizer"]
)
def test_changed_entry_is_recreated(
    tmp_path: Path, caches: Callable[[str], Path], change: str
) -> None:
    caches("cache")
    file = tokenizer_file(tmp_path / "tokenizer.json")
    data = corpus(tmp_path / "corpus", tokenizer=str(file), eos_token="</s>")
    assert made_anew(data)
    settings: dict[str, dict[str, Any]] = {
        "text_field": {"text_field": "body"},
        "validation_fraction": {"validation_fraction": 0.2},
        "eos_token": {"eos_token": "<eos>"},
    }
    if change == "file":
        (tmp_path / "corpus" / "0.jsonl").write_text('{"text": "other"}\n')
    elif change == "tokenizer":
        other = tokenizer_file(tmp_path / "other.json", "0 1 2 3")
        settings[change] = {"tokenizer": str(other)}
    assert made_anew(data.model_copy(update=settings.get(change, {})))


def test_leftovers_go_when_nobody_is_at_them_and_nobody_will_be(
    tmp_path: Path, caches: Callable[[str], Path]
) -> None:
    tokens = caches("cache")
    busy = corpus(tmp_path / "busy")
    maker = Maker(busy, tmp_path)
    (of_the_maker,) = tokens.glob("*.making")
    now = time.time()
    ages_s = {"new": 0, "old": token_cache.LEFTOVER_S + 60, of_the_maker.stem: 10**7}
    for name, age_s in ages_s.items():
        making = tokens / f"{name}.making"
        (making / "shards").mkdir(parents=True, exist_ok=True)
        for path in (making, making / "shards"):
            os.utime(path, (now - age_s, now - age_s))
    token_cache.load(corpus(tmp_path / "another", records=10))
    assert {path.stem for path in tokens.glob("*.making")} == {"new", of_the_maker.stem}
    maker.kill()


def test_records_that_were_left_out_before_an_interruption_count(
    tmp_path: Path, caches: Callable[[str], Path]
) -> None:
    caches("cache")
    data = corpus(tmp_path / "corpus", max_bad_records=9)
    path = tmp_path / "corpus" / "0.jsonl"
    path.write_text("{}\n" + path.read_text() + "[]\n")
    last = tmp_path / "corpus" / "1.jsonl"
    last.write_text(last.read_text() + "{}\n")
    Maker(data, tmp_path).kill()
    with pytest.raises(DataError, match=r"2 bad records, for example .*0\.jsonl:202: "):
        token_cache.load(data.model_copy(update={"max_bad_records": 0}))
    found = token_cache.load(data).bad.found
    assert [one.partition(".jsonl:")[2][:3] for one in found] == ["1: ", "202", "201"]


def test_memory_holds_a_piece_not_the_corpus(
    tmp_path: Path, caches: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    caches("cache")
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 100_000)
    files = 200
    for number in range(files):
        (tmp_path / f"{number}.txt").write_bytes(bytes(100_000))
    data = corpus(tmp_path / "corpus").model_copy(
        update={"source": "text", "path": str(tmp_path / "*.txt")}
    )
    tracemalloc.start()
    tokens = token_cache.load(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(tokens.held_in) + len(tokens.held_out) == files * 100_001
    assert peak < 10_000_000, "half of the corpus; threads of other tests count, too"
