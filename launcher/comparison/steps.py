"""The steps of a run, each from the last attempt that trained it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from launcher.runs.run_record import RunRecord
from trainer.contract.records.metrics_file import Line, curve

FILES = {"events.jsonl": '"event": "step"', "metrics.jsonl": '"loss"'}
"""Files with steps, and what the line of a step contains."""


@dataclass(frozen=True)
class Step:
    """What two runs are compared by at one step."""

    loss: float
    digest: int | None
    """Sum modulo 2^32 of a hash of each example's number; None without one."""
    corpus: str | None
    """SHA-256 of the training data; None when it was not recorded."""
    tokens: int | None
    """Tokens trained on since the first step."""


Steps = Mapping[int, Step]
"""Steps by their numbers, in order."""


def steps_of(record: RunRecord) -> Steps:
    """Returns the steps of a run that have a finite loss."""
    steps = ((line["step"], _step(line, record.corpora)) for line in step_lines(record))
    return {number: step for number, step in steps if isfinite(step.loss)}


def step_lines(record: RunRecord) -> list[Line]:
    """Returns the lines of a run's steps.

    Those that metrics.jsonl leaves out (`log_every`) come from the events.
    """
    lines = [line for line in record.metrics if "loss" in line]
    if lines and len(lines) < lines[-1]["step"]:
        lines = _with_events(record.folder)
    return lines


def _with_events(folder: Path) -> list[Line]:
    """Returns the steps in the events and in metrics.jsonl; those in both are there twice."""
    texts = [text for name, mark in FILES.items() for text in _lines(folder / name) if mark in text]
    return [line for line in curve(texts) if "loss" in line]


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from file
    except OSError:
        return


def _step(line: Line, corpora: Mapping[int, str]) -> Step:
    loss, tokens = line["loss"], line.get("tokens")
    return Step(
        loss=float(loss) if isinstance(loss, int | float) else nan,
        digest=_digest(line.get("examples")),
        corpus=corpora.get(line["attempt"]),
        tokens=tokens if isinstance(tokens, int) else None,
    )


def _digest(text: Any) -> int | None:
    try:
        return int(text, 16) if isinstance(text, str) else None
    except ValueError:
        return None
