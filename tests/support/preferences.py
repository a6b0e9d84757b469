"""Pairs of a preferred and a rejected completion, and jobs that train on them."""

from pathlib import Path
from typing import Any

from tests.support.chats import write
from tests.support.jobs import job_of
from trainer.contract.config.job import Job

WORDS = ("red", "green", "blue", "seven", "eight", "a dog", "the cat", "nine men")


def pair(prompt: Any, chosen: Any, rejected: Any) -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def pairs(count: int) -> list[dict[str, Any]]:
    """Different pairs of texts, of several lengths; the chosen ones end in `!`."""
    found = []
    for number in range(count):
        first, second = WORDS[number % 8], WORDS[(3 * number + 1 + number // 8) % 8]
        found.append(pair(f"{number}: {first}?", f" {second}!", f" no {first}."))
    return found


def dpo_job(folder: Path, count: int = 24, **changes: Any) -> Job:
    """A tiny job on `count` pairs of a new file in a folder."""
    data = {
        "source": "preference",
        "path": write(folder / "pairs.jsonl", *pairs(count)),
        "seq_len": 64,
        "validation_fraction": 0.0,
        **changes.pop("data", {}),
    }
    settings: dict[str, Any] = {
        "dpo": {"beta": 0.5},
        "lora": {"rank": 4, "alpha": 8.0},
        "checkpoint": {"every_steps": 100, "init_from": "base"},
        "optimizer": {"learning_rate": 1e-2},
    }
    return job_of(data=data, **{**settings, **changes})
