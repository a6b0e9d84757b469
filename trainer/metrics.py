"""What is reported of a step: FLOPs, rates, and the lines of metrics.jsonl."""

import json
import math
import os
from pathlib import Path

from trainer.spec import accelerators
from trainer.spec.job import Job
from trainer.spec.plan import Plan, World


def flops_per_token(job: Job, plan: Plan) -> float:
    """FLOPs of forward and backward pass per token, by the causal convention.

    6 N + 6 L S H h: N counts the weights of matrix products (the output's too where it is tied to
    the embedding, whose look-up is free; norms are left out); attention's two products over S
    positions are 12 L S H h, halved because a position sees only those before it. Work done again
    by rematerialization is not counted.
    """
    model = job.model
    kernels = [array for array in plan.parameters if "norm" not in array.axes]
    if not model.tied_embeddings:
        kernels = [array for array in kernels if array.name != "embedding.table"]
    weights = sum(math.prod(array.shape) for array in kernels)
    attention = model.layers * job.data.seq_len * model.heads * model.head_dim
    return 6.0 * weights + 6.0 * attention


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
        self._flops = self._tokens * flops_per_token(job, plan)
        self._peak = peak_flops(plan.world)

    def of(self, examples: int, step_time_s: float) -> dict[str, object]:
        """Fields `tokens` (of all `examples` so far), `step_time_s`, `tokens_per_s` and `mfu`."""
        rate = None if self._peak is None else self._flops / step_time_s / self._peak
        return {
            "tokens": examples * self._seq_len,
            "step_time_s": step_time_s,
            "tokens_per_s": self._tokens / step_time_s,
            "mfu": rate,
        }


class MetricsFile:
    """metrics.jsonl of a run: appended to by process 0, line by line; elsewhere nothing."""

    def __init__(self, run_dir: Path, process: int):
        self._path = run_dir / "metrics.jsonl" if process == 0 else None
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
