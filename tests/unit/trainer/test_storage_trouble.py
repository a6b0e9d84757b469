"""Trouble of storage while the data is read: retried, and never taken for bad data."""

import errno
import glob
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer import __main__ as program
from trainer.contract.config.data import Data
from trainer.contract.config.loader import ConfigError
from trainer.contract.protocol.exit_codes import ProgramExit
from trainer.contract.storage import corpus, listing, retries
from trainer.contract.storage.corpus import DataError
from trainer.contract.storage.retries import StorageError
from trainer.data import token_cache, token_shards
from trainer.data.documents import BadRecords, documents, hash_to_unit


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(retries, "pause", lambda tries: 0.0)


def stale(path: object) -> OSError:
    return OSError(errno.ESTALE, "Stale file handle", str(path))


def text_corpus(folder: Path) -> Data:
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text(f"text of {name} " * 50)
    sizes = {"seq_len": 8, "global_batch": 1, "validation_fraction": 0.0}
    return Data.model_validate({"source": "text", "path": str(folder / "*.txt"), **sizes})


@pytest.fixture
def failing_opens(monkeypatch) -> Callable[[float], None]:
    """The next opens of files of text, so many of them, give ESTALE."""
    real = Path.open

    def fail(times: float) -> None:
        left = [times]

        def opened(path: Path, *args: Any, **options: Any) -> Any:
            if path.suffix == ".txt" and left[0] > 0:
                left[0] -= 1
                raise stale(path)
            return real(path, *args, **options)

        monkeypatch.setattr(Path, "open", opened)

    return fail


def test_the_digest_of_a_corpus_survives_a_stale_handle(tmp_path, failing_opens):
    data = text_corpus(tmp_path / "corpus")
    before = corpus.digest(data)
    failing_opens(3)
    assert corpus.digest(data) == before


def test_a_corpus_that_stays_stale_is_a_crash_and_not_bad_data(
    tmp_path, failing_opens, monkeypatch
):
    data = text_corpus(tmp_path / "corpus")
    failing_opens(float("inf"))
    monkeypatch.setattr(retries, "PATIENCE_S", -1.0)
    with pytest.raises(StorageError, match="Stale file handle") as raised:
        corpus.digest(data)
    code, message, _ = program._translate(raised.value)
    assert code == ProgramExit.FAILED and "Traceback" not in message


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path, monkeypatch):
    (tmp_path / "corpus").mkdir()
    data = text_corpus(tmp_path / "corpus" / "inner")
    data = data.model_copy(update={"path": str(tmp_path / "corpus" / "**" / "*.txt")})
    real, troubles = os.scandir, [1, 1]

    def scandir(path: Any = ".") -> Any:
        if str(path).endswith("inner") and troubles:
            troubles.pop()
            raise stale(path)
        return real(path)

    monkeypatch.setattr(listing.os, "scandir", scandir)
    assert [file.name for file in corpus.files(data)] == ["inner/a.txt", "inner/b.txt"]
    assert not troubles


@pytest.mark.parametrize(
    "pattern",
    ["*.txt", "**/*.txt", "**", "*/*.txt", "a/**/c.txt", "a/x.txt", ".h/*", "[ab]/*", "q"],
)
def test_a_glob_matches_what_the_library_says(tmp_path, pattern):
    for name in (
        "x.txt",
        "a/x.txt",
        "a/b/c.txt",
        "a/.h.txt",
        "b/y.bin",
        ".h/z.txt",
        "a/b/.i/c.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    wanted = {Path(p) for p in glob.glob(str(tmp_path / pattern), recursive=True)}  # noqa: PTH207
    found = set(listing.matching(tmp_path / pattern))
    assert {p for p in found if p.is_file()} == {p for p in wanted if p.is_file()}


def test_a_file_of_records_is_read_on_behind_the_last_one(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{n}"}}\n' for n in range(6)))
    sizes = {"seq_len": 8, "global_batch": 1}
    data = Data.model_validate({"source": "jsonl", "path": str(tmp_path / "*.jsonl"), **sizes})
    from trainer.data import documents as module

    real, troubles = module._records, [1, 1]

    def records(file, data, over):
        for number, record in enumerate(real(file, data, over)):
            if number == 2 and troubles:
                troubles.pop()
                raise DataError("cannot be read") from stale(file.path)
            yield record

    monkeypatch.setattr(module, "_records", records)
    found = [(one.name, one.text) for one in documents(data, BadRecords(0))]
    assert found == [(f"a.jsonl:{n + 1}", str(n).encode()) for n in range(6)]
    assert not troubles


def test_data_readable_in_earlier_attempt_is_a_crash_when_refused():
    error = DataError("data.path: a.txt cannot be read: Permission denied")
    error.__cause__ = PermissionError(errno.EACCES, "Permission denied")
    assert program._translate(error, attempt=1)[0] == ProgramExit.BAD_DATA
    assert program._translate(error, attempt=2)[0] == ProgramExit.FAILED
    assert program._translate(DataError("a bad record"), attempt=2)[0] == ProgramExit.BAD_DATA


def test_a_corpus_that_is_not_the_planned_one_is_refused():
    from trainer.train import _check_corpus

    def planned(sha256: str | None) -> Any:
        return SimpleNamespace(corpus=SimpleNamespace(sha256=sha256))

    seen: Any = SimpleNamespace(corpus_sha256="seen")
    _check_corpus(planned("seen"), seen)
    _check_corpus(planned(None), seen)
    with pytest.raises(DataError, match="the data has changed, or this host has other data"):
        _check_corpus(planned("other"), seen)


def test_corpus_changing_during_tokenization_leaves_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = text_corpus(tmp_path / "corpus")
    real = token_shards.tokenize

    def tokenize(*arguments):
        (tmp_path / "corpus" / "b.txt").write_text("other text " * 50)
        return real(*arguments)

    monkeypatch.setattr(token_shards, "tokenize", tokenize)
    with pytest.raises(DataError, match="changed while it was being tokenized"):
        token_cache.load(data)
    assert [path for path in (tmp_path / "cache/slipway/tokens").iterdir() if path.is_dir()] == []
    monkeypatch.undo()


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = text_corpus(tmp_path / "corpus")

    def tokenize(*arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(token_shards, "tokenize", tokenize)
    with pytest.raises(ConfigError, match=r"Read-only file system\. Set XDG_CACHE_HOME"):
        token_cache.load(data)


def test_a_name_that_is_not_utf_8_has_a_place():
    assert 0 <= hash_to_unit([os.fsdecode(b"caf\xe9.txt")])[0] < 1
    assert hash_to_unit(["a.txt"])[0] == hash_to_unit(["a.txt"])[0] != hash_to_unit(["b.txt"])[0]
