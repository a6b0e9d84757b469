"""metrics.jsonl of a run as one clean curve, whatever crashed and was done again."""

import json
from collections.abc import Iterable
from typing import Any

Line = dict[str, Any]


def curve(lines: Iterable[str]) -> list[Line]:
    """Every step once, and every evaluation once, in the order of steps.

    A resumed run does again what its last checkpoint did not hold, under a new `attempt`: lines of
    an earlier attempt at or after the first step of a later one are dropped. So are torn lines.
    """
    parsed = [line for text in lines if (line := _parse(text)) is not None]
    first_step, first_evaluation = _firsts(parsed, evaluations=False), _firsts(parsed)
    kept = [
        line
        for line in parsed
        if not _is_done_again(line, first_evaluation if _is_evaluation(line) else first_step)
    ]
    return sorted(kept, key=lambda line: (line["step"], _is_evaluation(line)))


def _parse(text: str) -> Line | None:
    """None for what is no line of metrics."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    whole = isinstance(line, dict) and _is_number(line.get("step"))
    return line if whole and _is_number(line.setdefault("attempt", 1)) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_evaluation(line: Line) -> bool:
    return "loss" not in line


def _firsts(lines: Iterable[Line], *, evaluations: bool = True) -> dict[int, int]:
    """Attempt -> its first step. A step that is trained again will be evaluated again."""
    first: dict[int, int] = {}
    for line in lines:
        if evaluations or not _is_evaluation(line):
            first[line["attempt"]] = min(line["step"], first.get(line["attempt"], line["step"]))
    return first


def _is_done_again(line: Line, first: dict[int, int]) -> bool:
    step, attempt = line["step"], line["attempt"]
    return any(later > attempt and begin <= step for later, begin in first.items())
