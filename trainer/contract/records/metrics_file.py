"""Reads metrics.jsonl of a run as one clean curve, despite crashes and repeated steps."""

import json
from collections.abc import Iterable
from typing import Any

Line = dict[str, Any]


def curve(lines: Iterable[str]) -> list[Line]:
    """Returns every step once and every evaluation once, in the order of steps.

    A resumed run repeats the steps after its last checkpoint under a new `attempt`. Lines of an
    earlier attempt at or after the first step of a later one are dropped. So are torn lines.
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
    """Returns None when the text is not a line of metrics."""
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
    """Returns attempt -> its first step. A step that is trained again is evaluated again."""
    first: dict[int, int] = {}
    for line in lines:
        if evaluations or not _is_evaluation(line):
            first[line["attempt"]] = min(line["step"], first.get(line["attempt"], line["step"]))
    return first


def _is_done_again(line: Line, first: dict[int, int]) -> bool:
    step, attempt = line["step"], line["attempt"]
    return any(later > attempt and begin <= step for later, begin in first.items())
