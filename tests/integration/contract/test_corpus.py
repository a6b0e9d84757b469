"""The files of a corpus, and its hash."""

import os
import subprocess
import sys

import pytest

from trainer.contract.config.data import Data
from trainer.contract.storage.corpus import DataError, digest, files, reading

STDLIB = Data.model_validate({"source": "stdlib", "seq_len": 8, "global_batch": 1})


def text(path: str | None) -> Data:
    return Data.model_validate({"source": "text", "path": path, "seq_len": 8, "global_batch": 1})


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "deep/notes.md"):
        file = tmp_path / "corpus" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"text of {name}")
    return tmp_path / "corpus"


def names(data: Data) -> list[str]:
    return [file.name for file in files(data)]


def test_the_standard_library_is_source_text_and_has_no_tests_or_packages():
    found = names(STDLIB)
    assert {"argparse.py", "json/decoder.py"} <= set(found)
    assert found == sorted(found)
    assert not [name for name in found if "site-packages" in name or "/test/" in f"/{name}"]


def test_the_digest_is_the_same_in_another_process():
    program = (
        "from trainer.contract.config.data import Data;"
        "from trainer.contract.storage.corpus import digest;"
        "print(digest(Data(source='stdlib', seq_len=8, global_batch=1)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == digest(STDLIB)


def test_a_glob_finds_its_files_in_the_order_of_their_names(corpus):
    assert names(text("corpus/*.txt")) == ["a.txt", "b.txt"]


def test_two_stars_reach_every_depth(corpus):
    assert names(text("corpus/**/*.txt")) == ["a.txt", "b.txt", "deep/er/c.txt"]


def test_a_path_without_stars_is_one_document(corpus):
    assert names(text("corpus/a.txt")) == ["a.txt"]


def test_the_digest_does_not_depend_on_where_the_corpus_lies(corpus, tmp_path):
    before = digest(text("corpus/**/*.txt"))
    corpus.rename(tmp_path / "moved")
    assert digest(text(f"{tmp_path}/moved/**/*.txt")) == before


@pytest.mark.parametrize("change", ["content", "name", "boundary"])
def test_digest_differs_between_corpora(corpus, change):
    before = digest(text("corpus/*.txt"))
    if change == "content":
        (corpus / "a.txt").write_text("text of A.txt")
    elif change == "name":
        (corpus / "a.txt").rename(corpus / "aa.txt")
    else:
        (corpus / "a.txt").write_text("text of a.txtt")
        (corpus / "b.txt").write_text("ext of b.txt")
    assert digest(text("corpus/*.txt")) != before


def test_a_file_name_that_is_no_text_is_hashed_too(corpus):
    (corpus / os.fsdecode(b"\xff.txt")).write_text("x")
    assert len(digest(text("corpus/*.txt"))) == 64


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (None, "source 'text' needs a glob"),
        ("corpus/*.rst", r"no file matches 'corpus/\*.rst'.*must exist on every host"),
        ("corpus", r"'corpus' is a folder\. Use 'corpus/\*'"),
    ],
)
def test_a_corpus_without_files_is_an_error_with_the_remedy(corpus, path, message):
    with pytest.raises(DataError, match=f"data.path: .*{message}"):
        files(text(path))


def test_a_corpus_of_empty_files_is_an_error(corpus):
    (corpus / "empty.log").touch()
    with pytest.raises(DataError, match=r"all 1 files that match .* are empty"):
        files(text("corpus/*.log"))


def test_a_file_that_vanishes_is_an_error_that_names_it(corpus):
    file = files(text("corpus/a.txt"))[0]
    (corpus / "a.txt").unlink()
    with pytest.raises(DataError, match=r"a\.txt cannot be read: No such file"), reading(file):
        pass
