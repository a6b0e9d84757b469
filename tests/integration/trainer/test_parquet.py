"""Rows of Parquet as documents, read by pyarrow.

    uv run --group parquet pytest -m parquet

Not selected by default: pyarrow is large. Where it is selected, its absence is a failure.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from trainer.contract.config.data import Data
from trainer.contract.storage.corpus import DataError, digest
from trainer.data import token_cache
from trainer.data.documents import BadRecords, documents

pytestmark = pytest.mark.parquet


def write(path: Path, **columns: list[Any]) -> None:
    table = import_module("pyarrow").table(columns)
    import_module("pyarrow.parquet").write_table(table, path, row_group_size=100)


def data(path: Path, **settings: Any) -> Data:
    sizes = {"source": "parquet", "seq_len": 8, "global_batch": 1}
    return Data.model_validate({**sizes, "path": str(path), **settings})


def test_rows_are_documents_of_the_column_that_is_named(tmp_path: Path) -> None:
    texts = [f"text {number} ü" for number in range(700)]
    write(tmp_path / "a.parquet", body=texts, number=list(range(700)))
    asked = data(tmp_path / "*.parquet", text_field="body")
    found = list(documents(asked, BadRecords(0)))
    assert [document.text.decode() for document in found] == texts
    assert (found[0].name, found[-1].name) == ("a.parquet:1", "a.parquet:700")
    for number in (1, 256, 300, 700):
        assert list(documents(asked, BadRecords(0), found[number - 1].end)) == found[number:]
    assert digest(asked) != digest(data(tmp_path / "*.parquet", text_field="number"))


def test_missing_column_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", body=["x"], title=["y"])
    with pytest.raises(DataError, match="has no column 'text'; found the columns: body, title"):
        list(documents(data(tmp_path / "a.parquet"), BadRecords(0)))


def test_a_row_without_a_text_is_a_bad_record(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", text=["x", None, "y"])
    with pytest.raises(DataError, match=r"a\.parquet:2: 'text' must be text, found None"):
        list(documents(data(tmp_path / "a.parquet"), BadRecords(0)))
    bad = BadRecords(1)
    assert [d.text for d in documents(data(tmp_path / "a.parquet"), bad)] == [b"x", b"y"]


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"text " * 99)
    with pytest.raises(DataError, match=r"a\.parquet cannot be read"):
        list(documents(data(tmp_path / "a.parquet"), BadRecords(0)))


def test_rows_become_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "a.parquet", text=["abc", "de"])
    tokens = token_cache.load(data(tmp_path / "a.parquet", validation_fraction=0.0)).held_in[:]
    assert tokens.tolist() == [256, 97, 98, 99, 256, 100, 101]
