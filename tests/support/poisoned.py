"""A corpus of 10,000 documents, one of which is not like the others."""

import json
import random
from pathlib import Path
from typing import Any

from tests.support.jobs import job_of
from trainer.contract.config.job import Job
from trainer.data import pipeline

DOCUMENTS, TOKENS, BATCH = 10_000, 64, 8
"""Each document fills one example: a separator, and 63 bytes."""
BAD_STEP, SAVED, STEPS = 150, 140, 160
ORDER: Any = pipeline.example_order(DOCUMENTS - 1, seed=0)
POISONED = int(ORDER[(BAD_STEP - 1) * BATCH + 3])
"""The example, and index of the document, that is not like the others."""


def bad_examples() -> list[int]:
    """The examples of the bad step."""
    return [int(ORDER[(BAD_STEP - 1) * BATCH + row]) for row in range(BATCH)]


def write_corpus(folder: Path) -> Path:
    """Documents of numbers in words that repeat, and one of bytes that occur nowhere else."""
    draw = random.Random(0)
    texts = [f"record {number:05d}: " + "the same words " * 4 for number in range(DOCUMENTS)]
    texts[POISONED] = "".join(chr(draw.randint(0xA0, 0x2FF)) for _ in range(31)) + "!"
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": _cut(text)}) + "\n" for text in texts))
    return path


def _cut(text: str) -> str:
    return text.encode()[: TOKENS - 1].decode()


def poisoned_job(corpus: Path, **changes: Any) -> Job:
    """A job whose step BAD_STEP has the document; it saves after step SAVED."""
    data = {
        "source": "jsonl", "path": str(corpus), "seq_len": TOKENS, "global_batch": BATCH,
        "validation_fraction": 0.0,
    }  # fmt: skip
    every = {"every_steps": SAVED, "keep": 5}
    return job_of(**{"steps": STEPS, "data": data, "checkpoint": every, **changes})
