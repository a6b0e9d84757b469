"""Each example's documents: they tile it, and their positions lead back to the text."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.jobs import job_of
from trainer.contract.config.job import Job
from trainer.data import mixture
from trainer.data.provenance import DocumentPart, Provenance

SEQ_LEN = 16
TEXTS = ["a first document, ", "the second", "3", "and the last one, which is the longest of them"]


def loaded(**data: Any) -> tuple[Job, Any]:
    job = job_of(data={"seq_len": SEQ_LEN, "global_batch": 1, "validation_fraction": 0.0, **data})
    return job, mixture.load(job.data)


def parts_of(job: Job, tokens: Any) -> list[tuple[int, list[DocumentPart]]]:
    found = Provenance(tokens, job.data)
    count = sum(part.sequences(SEQ_LEN) for part in tokens.parts)
    every = [(number, found.parts(number)) for number in range(count)]
    for _, parts in every:
        assert parts[0].start == 0 and parts[-1].stop == SEQ_LEN
        assert all(before.stop == after.start for before, after in pairwise(parts))
    return every


def write_lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def test_records_have_files_lines_and_positions(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", TEXTS[:2])
    write_lines(tmp_path / "b.jsonl", TEXTS[2:])
    job, tokens = loaded(source="jsonl", path=str(tmp_path / "*.jsonl"))
    names: list[str] = ["a.jsonl:1", "a.jsonl:2", "b.jsonl:1", "b.jsonl:2"]
    by_name = dict(zip(names, TEXTS, strict=True))
    seen = dict.fromkeys(by_name, "")
    provenance = Provenance(tokens, job.data)
    for number, parts in parts_of(job, tokens):
        for part in parts:
            assert part.file == str(tmp_path / part.document.partition(":")[0])
            text = provenance.text(number, part)
            first = max(part.first - 1, 0)  # token 0 is the separator
            assert by_name[part.document][first : first + len(text)] == text
            assert part.line == int(part.document[-1])
            seen[part.document] += text
    *whole, last = seen
    assert [seen[name] for name in whole] == TEXTS[:-1]
    assert seen[last] and TEXTS[-1].startswith(seen[last])


def test_whole_files_have_no_line_and_held_out_ones_are_left_out(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
    job, tokens = loaded(source="text", path=str(tmp_path / "*.txt"), validation_fraction=0.4)
    provenance, names = Provenance(tokens, job.data), set()
    for number, parts in parts_of(job, tokens):
        for part in parts:
            assert part.line is None
            assert provenance.text(number, part) in (tmp_path / part.document).read_text()
            names.add(part.document)
    assert 0 < len(names) < len(TEXTS)


def test_files_of_tokens_have_positions_in_the_file(tmp_path: Path) -> None:
    for name, size in (("a", 20), ("b", 30)):
        np.save(tmp_path / f"{name}.npy", np.arange(size, dtype=np.uint16))
    job, tokens = loaded(source="tokens", path=str(tmp_path / "*.npy"))
    found = [
        [(p.document, p.first, p.stop - p.start) for p in ps] for _, ps in parts_of(job, tokens)
    ]
    assert found[:2] == [[("a.npy", 0, 16)], [("a.npy", 16, 4), ("b.npy", 0, 12)]]


def test_sources_of_a_mixture_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_lines(tmp_path / f"{name}.jsonl", [name * 20])
    sources = [
        {"source": "jsonl", "path": str(tmp_path / f"{name}.jsonl"), "name": name}
        for name in ("one", "two")
    ]
    job = Job.model_validate(
        {
            **job_of().model_dump(exclude={"data"}),
            "data": {
                "mixture": sources, "seq_len": SEQ_LEN, "global_batch": 2,
                "validation_fraction": 0.0,
            },
        }
    )  # fmt: skip
    tokens = mixture.load(job.data)
    names = {(p.source, p.document) for _, parts in parts_of(job, tokens) for p in parts}
    assert names == {("one", "one.jsonl:1"), ("two", "two.jsonl:1")}
