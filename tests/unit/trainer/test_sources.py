"""Records of ArrayRecord, and tokens that are there already."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from tests.support.jobs import corpus_of, job_of, world_of
from trainer.contract.config.data import Data
from trainer.contract.planning.planner import PlanError, resolve
from trainer.contract.storage.corpus import DataError, digest
from trainer.data import pipeline, token_cache
from trainer.data.documents import BadRecords, documents
from trainer.data.token_shards import Stream

SEPARATOR = 256


def data(source: str, path: Path, **settings: Any) -> Data:
    sizes = {"seq_len": 8, "global_batch": 1, "source": source, "path": str(path)}
    return Data.model_validate({**sizes, **settings})


def array_records(path: Path, records: list[bytes]) -> None:
    writer = ArrayRecordWriter(str(path), "group_size:2")
    for record in records:
        writer.write(record)
    writer.close()


def test_records_of_array_record_are_documents(tmp_path: Path) -> None:
    for name in "ab":
        texts = [f"{name} {n} ü".encode() for n in range(300)]
        array_records(tmp_path / f"{name}.array_record", texts)
    asked = data("array_record", tmp_path / "*.array_record")
    found = list(documents(asked, BadRecords(0)))
    assert len(found) == 600
    assert (found[0].name, found[0].text) == ("a.array_record:1", "a 0 ü".encode())
    assert found[-1].name == "b.array_record:300"
    assert found[-1].end.read == sum(path.stat().st_size for path in tmp_path.iterdir())
    for number in (1, 257, 300, 301, 600):
        assert list(documents(asked, BadRecords(0), found[number - 1].end)) == found[number:]


@pytest.mark.parametrize("content", [b"x", b"text " * 99, b"text " * 99_999])
def test_what_is_no_array_record_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.array_record").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.array_record cannot be read as ArrayRecord"):
        list(documents(data("array_record", tmp_path / "a.array_record"), BadRecords(0)))


def test_without_its_library_parquet_is_refused_with_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        DataError, match=r"not installed on this host\. Install the extra `parquet`"
    ):
        list(documents(data("parquet", tmp_path / "a.parquet"), BadRecords(0)))


def stream_of(count: int) -> np.ndarray:
    """Documents of nine tokens, with their separators."""
    tokens = np.arange(count) % 251
    tokens[::10] = SEPARATOR
    return tokens.astype(np.uint16)


def test_files_of_tokens_are_one_stream_in_place(tmp_path: Path) -> None:
    whole = stream_of(1000)
    np.save(tmp_path / "a.npy", whole[:333])
    whole[333:700].tofile(tmp_path / "b.bin")
    np.save(tmp_path / "c.npy", whole[700:].astype(np.uint32))
    tokens = token_cache.load(data("tokens", tmp_path / "*.[nb]*", validation_fraction=0.055))
    assert len(tokens.held_in) == 950 and len(tokens.held_out) == 50
    np.testing.assert_array_equal(tokens.held_in[:], whole[:950])
    np.testing.assert_array_equal(tokens.held_out[:], whole[950:])
    assert tokens.held_out[:1].tolist() == [SEPARATOR]


@pytest.mark.parametrize("lengths", [[7], [3, 4], [1, 0, 6], [2, 2, 2, 1]])
def test_a_slice_of_a_stream_is_that_of_its_arrays_in_a_row(lengths: list[int]) -> None:
    whole = np.arange(7, dtype=np.uint16)
    stream = Stream(np.split(whole, np.cumsum(lengths)[:-1]))
    for start in range(9):
        for stop in range(9):
            np.testing.assert_array_equal(stream[start:stop], whole[start:stop])
    for at in range(8):
        head, tail = stream.split(at)
        np.testing.assert_array_equal(head[:], whole[:at])
        np.testing.assert_array_equal(tail[:], whole[at:])


def test_nothing_is_held_out_of_tokens_where_nothing_is_asked_for(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", stream_of(100))
    tokens = token_cache.load(data("tokens", tmp_path / "a.npy", validation_fraction=0.0))
    assert (len(tokens.held_in), len(tokens.held_out)) == (100, 0)


def test_tokens_are_trained_and_evaluated_on_as_those_of_text(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some text " * 40)
    of_text = data("text", text, validation_fraction=0.0)
    np.save(tmp_path / "a.npy", token_cache.load(of_text).held_in[:])
    of_tokens = data("tokens", tmp_path / "a.npy", validation_fraction=0.0)
    (one,), (other,) = (
        [next(pipeline.training_batches(token_cache.load(asked), asked, 0, (0, 1), 5))]
        for asked in (of_text, of_tokens)
    )
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    held_out = token_cache.load(of_tokens.model_copy(update={"validation_fraction": 0.5}))
    batches = pipeline.held_out_batches(held_out, of_tokens, 99, (0, 1))
    assert sum(batch.weights.sum() for batch in batches) == len(held_out.held_out) - 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.npy",
            np.array([1, 2, 257], np.uint16),
            "contains token 257, but data.tokenizer has 257",
        ),
        ("a.npy", np.zeros((2, 2), np.uint16), r"holds uint16 of shape \(2, 2\)"),
        ("a.npy", np.zeros(3, np.int64), r"holds int64 of shape \(3,\)"),
        ("a.npy", b"no array", "cannot be read as tokens"),
        ("a.bin", b"odd", "cannot be read as tokens"),
        ("a.txt", b"text", r"end in \.npy or \.bin"),
    ],
)
def test_files_without_tokens_are_refused(tmp_path: Path, name: str, content: Any, said: str):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content)
    with pytest.raises(DataError, match=rf"data\.path: .*{name}.*{said}"):
        token_cache.load(data("tokens", path))


def test_the_dtype_is_a_part_of_the_corpus(tmp_path: Path) -> None:
    np.ones(8, np.uint32).tofile(tmp_path / "a.bin")
    narrow, wide = (
        data("tokens", tmp_path / "a.bin", dtype=dtype, validation_fraction=0.0)
        for dtype in ("uint16", "uint32")
    )
    assert len(token_cache.load(narrow).held_in) == 16
    assert len(token_cache.load(wide).held_in) == 8
    assert digest(narrow) != digest(wide)


def test_no_tokenizer_is_trained_on_tokens() -> None:
    job = job_of(data={"source": "tokens", "path": "x", "tokenizer": {"train": 300}})
    with pytest.raises(PlanError, match=r"data\.tokenizer: cannot be trained on source 'tokens'"):
        resolve(job, world_of(), corpus_of(job))
