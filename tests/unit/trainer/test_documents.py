"""Records of JSON Lines and compressed files as documents."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from trainer.contract.config.data import Data
from trainer.contract.storage.corpus import DataError, digest
from trainer.data import token_cache
from trainer.data.documents import BadRecords, documents, zstd


def data(path: Path, **settings: Any) -> Data:
    sizes = {"seq_len": 8, "global_batch": 1}
    return Data.model_validate({"source": "jsonl", "path": str(path), **sizes, **settings})


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def read(asked: Data, bad: BadRecords | None = None) -> list[tuple[str, bytes]]:
    found = documents(asked, bad or BadRecords(asked.max_bad_records))
    return [(document.name, document.text) for document in found]


def test_each_record_is_a_document_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "one"}) + b"\n" + lines({"text": "zwei ß"}))
    (tmp_path / "b.jsonl").write_bytes(lines({"text": "three", "more": [1]}))
    assert read(data(tmp_path / "*.jsonl")) == [
        ("a.jsonl:1", b"one"),
        ("a.jsonl:3", "zwei ß".encode()),
        ("b.jsonl:1", b"three"),
    ]


def test_the_text_is_in_the_field_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"body": "one", "text": "two"}))
    asked = data(tmp_path / "a.jsonl", text_field="body")
    assert read(asked) == [("a.jsonl:1", b"one")]
    assert digest(asked) != digest(data(tmp_path / "a.jsonl"))


def packed(kind: str, content: bytes) -> bytes:
    """Of zst, in two frames."""
    if kind == "gz":
        return gzip.compress(content)
    half = len(content) // 2
    return b"".join(zstd.compress(part) for part in (content[:half], content[half:]))


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed_files_are_what_they_hold(tmp_path: Path, kind: str) -> None:
    content = lines(*({"text": f"record {number} " * 50} for number in range(300)))
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / f"a.jsonl.{kind}").write_bytes(packed(kind, content))
    plain, compressed = (read(data(tmp_path / name)) for name in ("a.jsonl", f"a.jsonl.{kind}"))
    assert [text for _, text in compressed] == [text for _, text in plain]
    whole = data(tmp_path / f"a.jsonl.{kind}", source="text")
    assert read(whole) == [(f"a.jsonl.{kind}", content)]


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("damage", ["torn", "another"])
def test_a_damaged_file_is_named(tmp_path: Path, kind: str, damage: str) -> None:
    content = packed(kind, lines(*({"text": str(number)} for number in range(5000))))
    path = tmp_path / f"a.jsonl.{kind}"
    path.write_bytes(content[: len(content) // 3] if damage == "torn" else b"no archive" * 9)
    with pytest.raises(DataError, match=rf"a\.jsonl\.{kind} cannot be decompressed"):
        read(data(path))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"text": "x"', "the line is not JSON: "),
        (b'{"text": "\xff"}', "the line is not UTF-8"),
        (b'{"txt": "x"}', "no field 'text'; found the fields: txt"),
        (b'{"text": 7}', "'text' must be text, found 7"),
        (b'["text"]', "expected a JSON object"),
        (rb'{"text": "\ud800"}', "'text' contains an unpaired surrogate"),
    ],
)
def test_bad_record_is_reported_with_file_and_line_and_ends_run(
    tmp_path: Path, line: bytes, why: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines({"text": "good"}) + line + b"\n" + lines({"text": "too"}))
    with pytest.raises(DataError) as told:
        read(data(path))
    assert f"1 bad record, for example {path}:2: {why}" in str(told.value)
    assert "data.max_bad_records allows 0" in str(told.value)
    bad = BadRecords(1)
    assert read(data(path), bad) == [("a.jsonl:1", b"good"), ("a.jsonl:3", b"too")]
    assert len(bad.found) == 1


def test_what_was_left_out_is_known_to_the_cache_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines({"text": "good " * 20}, {}, {"text": "better " * 20}, []))
    asked = data(path, max_bad_records=2)
    made, cached = token_cache.load(asked), token_cache.load(asked)
    assert made.bad.found == cached.bad.found
    assert str(cached.bad).startswith(f"2 bad records, for example {path}:2: no field 'text'")
    with pytest.raises(DataError, match="2 bad records"):
        token_cache.load(data(path, max_bad_records=1))


def test_progress_is_counted_in_bytes_of_the_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(lines({"text": "x" * 90}))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    found = list(documents(data(tmp_path / "*.jsonl"), BadRecords(0)))
    assert [document.end.read for document in found] == [size // 2, size]


def test_documents_go_on_behind_any_other_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines({"text": "a"}) + b"\n" + lines({}, {"text": "b"}))
    (tmp_path / "b.jsonl").write_bytes(lines({"text": "c"}, {}))
    asked = data(tmp_path / "*.jsonl", max_bad_records=2)
    found = list(documents(asked, BadRecords(2)))
    assert len(found) == 3
    for number, document in enumerate(found, 1):
        assert list(documents(asked, BadRecords(2), document.end)) == found[number:]


def test_files_go_on_behind_any_other_one(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(f"text of {name}")
    asked = data(tmp_path / "*.txt", source="text")
    first, *others = documents(asked, BadRecords(0))
    assert list(documents(asked, BadRecords(0), first.end)) == others
