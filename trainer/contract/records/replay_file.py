"""digests.jsonl of a replay: what each step has computed, one line per step.

A digest of an array is that of checkpoints, see trainer/checkpoint/digests.py. An array that has
all layers has one digest per layer, any other array has one. Their sum modulo 2^32 is the digest
that a checkpoint records.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "digests.jsonl"
Digests = Mapping[str, tuple[int, ...]]
"""Digests of arrays by name, in the order of the state."""


@dataclass(frozen=True)
class StepDigests:
    """What one step has computed."""

    step: int
    loss: float | None
    """None when it is not finite."""
    grad_norm: float | None
    examples: str
    """Digest of the numbers of the examples, as in metrics.jsonl."""
    gradients: Digests
    """Gradients of the parameters, summed over the targets of the global batch."""
    state: Digests
    """State after the step: parameters and moments."""

    def line(self) -> str:
        """Returns the step as a line of the file."""
        return json.dumps(asdict(self)) + "\n"


def read(folder: Path) -> dict[int, StepDigests]:
    """Returns the steps that a replay in a folder has recorded, by number."""
    lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    steps = (_parsed(line) for line in lines)
    return {one.step: one for one in steps}


def _parsed(line: str) -> StepDigests:
    fields = json.loads(line)
    for name in ("gradients", "state"):
        fields[name] = {array: tuple(found) for array, found in fields[name].items()}
    return StepDigests(**fields)
