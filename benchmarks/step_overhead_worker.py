"""One process of step_overhead.py: Slipway's loop and a hand-written one take turns."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer import distributed, mesh
from trainer.checkpoint.saving import NoSaving
from trainer.checkpoint.start import Start
from trainer.data.feed import Feed
from trainer.data.packing import Batch
from trainer.environment import Environment
from trainer.evaluate import Evaluator
from trainer.events import Events
from trainer.loop import Loop
from trainer.loss import loss_sum
from trainer.metrics import Rates
from trainer.preflight import prepare_data
from trainer.report import Report
from trainer.spec.config import load
from trainer.spec.job import Job
from trainer.spec.plan import Plan
from trainer.stop import Wishes
from trainer.train_step import Trainable


def main() -> None:
    """`step_overhead_worker.py JOB_FILE ROUNDS`; process 0 writes times.json beside the job."""
    job_file, rounds = Path(sys.argv[1]), int(sys.argv[2])
    environment = Environment.read(os.environ)
    events = Events(environment)
    job = load(job_file, Job).value
    plan = Plan.model_validate_json((job_file.parent / "plans" / "0001.json").read_text())
    tokens = prepare_data(job, events)
    distributed.start(environment, on_cpu=plan.world.on_cpu)
    devices = mesh.build(plan)
    trainable = Trainable.of(job, plan, devices)
    report = Report(job, environment, job_file.parent, events)
    with jax.set_mesh(devices):
        feed = Feed(job, plan.batch, tokens, mesh.batch_sharding(devices))
        batch = next(feed.training(first_step=1))
        step = trainable.compiled_step(batch)
        loop = Loop(
            job, feed, step, Wishes(devices), Evaluator(trainable), NoSaving(), Rates(job, plan),
            report, events,
        )  # fmt: skip
        metrics_file = job_file.parent / "metrics.jsonl"
        times = _take_turns(loop, trainable, batch, rounds, metrics_file)
    if environment.process == 0:
        (job_file.parent / "times.json").write_text(json.dumps(times))
    distributed.barrier("end")
    distributed.shutdown()


def _take_turns(
    loop: Loop, trainable: Trainable, batch: Batch, rounds: int, metrics_file: Path
) -> dict[str, list[float]]:
    """Seconds a step, round by round, from the end of a round's first step to that of its last.

    The two begin by turns. The first round of each warms up and does not count.
    """
    steps = trainable.job.steps
    state, plain = trainable.initial_state(), PlainLoop(trainable)
    times: dict[str, list[float]] = {"slipway": [], "plain": []}
    for number in range(rounds + 1):
        if number % 2:
            plain_s = plain.run(batch, steps)
            state, _ = loop.run(Start(state))
        else:
            state, _ = loop.run(Start(state))
            plain_s = plain.run(batch, steps)
        if number:
            times["slipway"].append(_mean_step_s(metrics_file, steps))
            times["plain"].append(plain_s)
    return times


def _mean_step_s(metrics_file: Path, steps: int) -> float:
    """Of the last round in Slipway's own metrics; 0 on processes that write none."""
    if not metrics_file.exists():
        return 0.0
    lines = metrics_file.read_text().splitlines()[-steps:]
    return sum(json.loads(line)["step_time_s"] for line in lines[1:]) / (steps - 1)


class PlainLoop:
    """What one writes by hand: gradient and clipped AdamW in one jit, over one fixed batch."""

    def __init__(self, trainable: Trainable):
        settings = trainable.job.optimizer
        self._network = trainable.network
        self._rule = optax.chain(
            optax.clip_by_global_norm(settings.clip_norm or 1.0),
            optax.adamw(settings.learning_rate, settings.beta1, settings.beta2),
        )
        self._step: Callable[..., Any] = jax.jit(self._update, donate_argnums=(0, 1))
        self._params = trainable.initial_state().params
        self._moments = jax.jit(self._rule.init)(self._params)

    def run(self, batch: Batch, steps: int) -> float:
        """Seconds a step, without the first one."""
        self._steps(batch, 1)
        began = time.perf_counter()
        self._steps(batch, steps - 1)
        return (time.perf_counter() - began) / (steps - 1)

    def _steps(self, batch: Batch, count: int) -> None:
        loss = None
        for _ in range(count):
            self._params, self._moments, loss = self._step(self._params, self._moments, batch)
        jax.block_until_ready(loss)

    def _update(self, params: Any, moments: Any, batch: Batch) -> tuple[Any, Any, jax.Array]:
        rows = jax.tree.map(lambda x: x[0], batch)

        def mean_loss(params: Any) -> jax.Array:
            return loss_sum(self._network.bind(params), rows) / jnp.sum(rows.weights)

        loss, grads = jax.value_and_grad(mean_loss)(params)
        updates, moments = self._rule.update(grads, moments, params)
        return optax.apply_updates(params, updates), moments, loss


if __name__ == "__main__":
    main()
