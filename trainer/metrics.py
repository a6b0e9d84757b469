"""What is reported of a step: rates, and the lines of metrics.jsonl and samples.jsonl."""

import json
import os
from pathlib import Path

from trainer.spec import accelerators
from trainer.spec.job import Job
from trainer.spec.model import Model
from trainer.spec.plan import Plan, World
from trainer.spec.roofline import flops_per_token


def peak_flops(world: World) -> float | None:
    """Of all devices together, per second, in bfloat16; None where it is not known.

    Simulated devices have the accelerator's name, not its speed.
    """
    if world.on_cpu:
        return None
    try:
        peak = accelerators.parse(world.accelerator).peak_bf16_flops
    except ValueError:
        return None
    return None if peak is None else peak * world.devices


class Rates:
    """Rates of a step from its time."""

    def __init__(self, job: Job, plan: Plan):
        self._seq_len = job.data.seq_len
        self._tokens = job.data.global_batch * job.data.seq_len
        peak = peak_flops(plan.world)
        self._peak = peak if isinstance(job.model, Model) else None
        self._flops = self._tokens * flops_per_token(job, plan) if self._peak else 0.0

    def of(self, examples: int, step_time_s: float) -> dict[str, object]:
        """Fields `tokens` (of all `examples` so far), `step_time_s`, `tokens_per_s` and `mfu`."""
        rate = None if self._peak is None else self._flops / step_time_s / self._peak
        return {
            "tokens": examples * self._seq_len,
            "step_time_s": step_time_s,
            "tokens_per_s": self._tokens / step_time_s,
            "mfu": rate,
        }


class LinesFile:
    """A file of a run that process 0 appends to, line by line; elsewhere nothing."""

    def __init__(self, path: Path, process: int):
        self._path = path if process == 0 else None
        if self._path and _ends_torn(self._path):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def write(self, line: dict[str, object]) -> None:
        if self._path:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _ends_torn(path: Path) -> bool:
    """Whether an attempt was killed while it wrote: the next line must not go on from there."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
