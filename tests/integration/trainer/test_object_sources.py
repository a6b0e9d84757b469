"""Corpora on gs://, as far as a stand-in for the store goes.

uv run --group object_store --group parquet pytest -m object_store
"""

import gzip
import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from tests.support import gang
from tests.support.jobs import job_of, world_of
from tests.support.object_store_server import NAME
from trainer.contract.config.data import Data
from trainer.contract.storage.corpus import DataError, digest
from trainer.data import token_cache

pytestmark = pytest.mark.object_store
TEXTS = [f"text {number} ü" for number in range(300)]


def _put(bucket, storage: str, folder: Path) -> None:
    """All files of a folder."""
    prefix = storage.removeprefix(f"gs://{NAME}/")
    for path in sorted(folder.iterdir()):
        bucket.put(f"{prefix}/{path.name}", path.read_bytes())


def _data(source: str, path: str) -> Data:
    return Data.model_validate({"source": source, "path": path, "seq_len": 8, "global_batch": 1})


def _write_text(path: Path) -> None:
    path.write_text("\n".join(TEXTS))


def _write_jsonl(path: Path) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps({"text": t}) + "\n" for t in TEXTS).encode()))


def _write_parquet(path: Path) -> None:
    table = import_module("pyarrow").table({"text": TEXTS})
    import_module("pyarrow.parquet").write_table(table, path, row_group_size=100)


def _write_array_record(path: Path) -> None:
    module = import_module("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), "group_size:1")
    for text in TEXTS:
        writer.write(text.encode())
    writer.close()


def _write_tokens(path: Path) -> None:
    np.save(path, np.arange(3000, dtype=np.uint16) % 256)


@pytest.mark.parametrize(
    "source, name, write",
    [
        ("text", "a.txt", _write_text),
        ("jsonl", "a.jsonl.gz", _write_jsonl),
        ("parquet", "a.parquet", _write_parquet),
        ("array_record", "a.array_record", _write_array_record),
        ("tokens", "a.npy", _write_tokens),
    ],
)
def test_the_tokens_are_those_of_the_same_files_here(
    source, name, write, tmp_path, storage, bucket
):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / name)
    _put(bucket, f"{storage}/deep", tmp_path / "deep")
    here, there = (
        token_cache.load(_data(source, f"{root}/**/*{Path(name).suffix}"))
        for root in (tmp_path, storage)
    )
    assert here.count == there.count > 0
    assert np.array_equal(here.held_in[: here.count], there.held_in[: there.count])


def test_an_object_is_known_by_its_content_and_not_read_for_it(storage, bucket):
    prefix = storage.removeprefix(f"gs://{NAME}/")
    asked = _data("text", f"{storage}/*.txt")
    bucket.put(f"{prefix}/a.txt", b"one")
    first = digest(asked)
    bucket.put(f"{prefix}/a.txt", b"one")
    assert digest(asked) == first
    bucket.put(f"{prefix}/a.txt", b"two")
    assert digest(asked) != first


def test_unavailable_object_is_reported(storage, bucket):
    with pytest.raises(
        DataError, match=r"no object that your credentials can list matches 'gs://bucket/.*"
    ):
        digest(_data("text", f"{storage}/*.txt"))
    bucket.status = 403
    with pytest.raises(DataError, match=r"'gs://.*' cannot be listed: Forbidden"):
        digest(_data("text", f"{storage}/*.txt"))


def test_two_hosts_train_on_a_bucket(tmp_path, storage, bucket):
    prefix = storage.removeprefix(f"gs://{NAME}/")
    for number in range(4):
        bucket.put(f"{prefix}/{number}.txt", "\n".join(TEXTS).encode())
    job = job_of(data={"source": "text", "path": f"{storage}/*.txt"})
    ended = gang.run(job, world_of(2), tmp_path)
    assert ended.codes == [0, 0], ended.outputs
    assert len(ended.losses()) == 3
