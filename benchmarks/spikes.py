"""Do undisturbed runs have spikes? Trains 20 small runs and lists every false alarm.

`uv run python benchmarks/spikes.py` trains four optimizers, each with five seeds and learning
rates, on this machine. For each run it prints the alarms, and how near a loss and a gradient norm
came to its limit: 1 is the limit. Arguments are files `metrics.jsonl` of other runs, which are
judged instead.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Corpus
from trainer.contract.planning.planner import resolve
from trainer.data import token_cache
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.distributed import mesh
from trainer.distributed.stop_vote import StopRequest, StopVote
from trainer.run_plan import this_machine
from trainer.step.spikes import RecentSteps
from trainer.step.train_step import TrainProgram

STEPS = 300
OPTIMIZERS = {"adamw": 3e-3, "muon": 2e-2, "lion": 3e-4, "adafactor": 1e-2}
"""Name -> a usual peak learning rate for this size."""
FACTORS = (0.3, 0.6, 1.0, 1.5, 2.0)
"""Learning rates, relative to the usual one. Each has a seed of its own."""
Values = tuple[int, float, float]


def main() -> None:
    """Trains or reads runs, and prints a line for each."""
    files, alarms, count = [Path(name) for name in sys.argv[1:]], 0, 0
    runs = ((str(file), read(file)) for file in files) if files else trained()
    for name, values in runs:
        found, loss, norm = judged(values)
        alarms, count = alarms + len(found), count + 1
        print(f"{name}: alarms {found}, nearest loss {loss:.2f}, norm {norm:.2f}", flush=True)
    print(f"{alarms} false alarms in {count} runs")


def trained() -> Iterator[tuple[str, list[Values]]]:
    """Trains the runs; those of an optimizer share its compiled step and the first weights."""
    for name, rate in OPTIMIZERS.items():
        program, loader = built(job_of(name, rate, seed=0))
        with jax.set_mesh(program.mesh):
            step = program.compiled_step(next(loader.training(1)))
            first = jax.device_get(program.initial_state())
            for seed, factor in enumerate(FACTORS):
                own = replace(program, job=job_of(name, rate * factor, seed))
                state = jax.device_put(first, program.shardings)
                yield f"{name} x {factor}", list(steps(own, step, state))


def steps(program: TrainProgram, step: jax.stages.Compiled, state: Any) -> Iterator[Values]:
    """Yields number, loss and gradient norm of each step."""
    nothing = StopVote(program.mesh).array(StopRequest.NOTHING)
    batches = built(program.job)[1].training(1)
    for number in range(1, STEPS + 1):
        state, metrics = step(program.schedule, state, next(batches), nothing, program.no_limits)
        yield number, float(metrics.loss), float(metrics.grad_norm)


def job_of(optimizer: str, rate: float, seed: int) -> Job:
    """Returns a small job."""
    settings = {
        "name": optimizer, "learning_rate": rate, "schedule": "cosine", "warmup_steps": 20,
    }  # fmt: skip
    return Job.model_validate(
        {
            "name": "calm",
            "steps": STEPS,
            "seed": seed,
            "model": {"layers": 2, "d_model": 32, "heads": 4, "kv_heads": 2, "d_ff": 64},
            "data": {"source": "stdlib", "seq_len": 64, "global_batch": 8},
            "optimizer": settings,
            "eval": None,
            "sample": None,
            "checkpoint": None,
        }
    )


def built(job: Job) -> tuple[TrainProgram, BatchLoader]:
    """Returns a job's program on the devices of this machine, and its batches."""
    plan = resolve(job, this_machine(), Corpus(source=job.data.source, sha256=None))
    devices = mesh.build(plan)
    shardings = batch_shardings(devices)
    loader = BatchLoader(job, plan.batch, token_cache.load(job.data), shardings)
    return TrainProgram.of(job, plan, devices), loader


def read(file: Path) -> list[Values]:
    """Returns the values of a run in its metrics.jsonl."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines if "loss" in line]


def judged(values: Iterable[Values]) -> tuple[list[int], float, float]:
    """Returns the alarms of a run, and the most of a loss and of a norm per limit."""
    recent, alarms, nearest = RecentSteps(), list[int](), [0.0, 0.0]
    for step, loss, grad_norm in values:
        limits = recent.limits(step)
        if not limits.are_kept(loss, grad_norm):
            alarms.append(step)
        shares = (loss / limits.loss, grad_norm / limits.grad_norm)
        nearest = [max(pair) for pair in zip(nearest, shares, strict=True)]
        recent.add(step, loss, grad_norm)
    return alarms, nearest[0], nearest[1]


if __name__ == "__main__":
    main()
