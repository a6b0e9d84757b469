"""One process of step_overhead.py, which alternates Slipway's loop with a hand-written one."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.callbacks import ProfileCallback, ReportCallback
from trainer.checkpoint.initial_state import InitialState
from trainer.checkpoint.policy import NoSaving
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.planning.plan import Plan
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.packing import Batch
from trainer.distributed import initialize, mesh
from trainer.distributed.process_env import Environment
from trainer.distributed.stop_vote import StopVote
from trainer.loop import Loop, Step, Training
from trainer.preflight import prepare_data
from trainer.step.loss import loss_sum
from trainer.step.spike_policy import SpikePolicy
from trainer.step.spikes import RecentSteps
from trainer.step.train_state import StepMetrics, TrainState
from trainer.step.train_step import TrainProgram
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import Report
from trainer.telemetry.profiler import Profiler


def main() -> None:
    """`step_overhead_worker.py JOB_FILE ROUNDS`; process 0 writes times.json beside the job."""
    job_file, rounds = Path(sys.argv[1]), int(sys.argv[2])
    environment = Environment.read(os.environ)
    events = Events(environment)
    job = load(job_file, Job).value
    plan = Plan.model_validate_json((job_file.parent / "plans" / "0001.json").read_text())
    tokens = prepare_data(job, events)
    initialize.start(environment, job.deadlines, on_cpu=plan.world.on_cpu)
    devices = mesh.build(plan)
    program = TrainProgram.of(job, plan, devices)
    report = Report(job, environment, job_file.parent, events)
    with jax.set_mesh(devices):
        loader = BatchLoader(job, plan.batch, tokens, batch_shardings(devices))
        batch = next(loader.training(first_step=1))
        step = partial(program.compiled_step(batch), program.schedule)
        turns = Turns(program, step, batch, rounds)
        callbacks = [
            ReportCallback(job, plan, loader, report),
            ProfileCallback(Profiler(job, environment, job_file.parent), events),
        ]
        spikes = SpikePolicy(program, RecentSteps(), report)
        training = Training(job.steps, turns, loader, StopVote(devices), NoSaving(), spikes)
        Loop(training, callbacks, events).run(InitialState(program.initial_state()))
    if environment.process == 0:
        slipway = _round_times(job_file.parent / "metrics.jsonl", rounds)
        # The first round warms up.
        times = {"slipway": slipway[1:], "plain": turns.plain_times[1:]}
        (job_file.parent / "times.json").write_text(json.dumps(times))
    initialize.barrier("end")
    initialize.shutdown()


class Turns:
    """Slipway's step. Every few steps it blocks its loop while the plain loop makes as many."""

    def __init__(self, program: TrainProgram, step: Step, batch: Batch, rounds: int):
        self._step, self._plain, self._batch = step, PlainLoop(program), batch
        self._steps = program.job.steps // rounds
        self._calls = 0
        self.plain_times: list[float] = []
        """Seconds per step, by round."""

    def __call__(
        self, state: TrainState[jax.Array], batch: Batch, requests: jax.Array, limits: jax.Array
    ) -> tuple[TrainState[jax.Array], StepMetrics]:
        if self._calls % self._steps == 0:
            jax.block_until_ready(state)
            self.plain_times.append(self._plain.run(self._batch, self._steps))
        self._calls += 1
        return self._step(state, batch, requests, limits)


def _round_times(metrics_file: Path, rounds: int) -> list[float]:
    """Returns the seconds per step in Slipway's metrics, by round.

    Left out are the first step of a round, as in the plain loop's, and the last one, whose time
    holds the plain loop's next turn.
    """
    times = [json.loads(line)["step_time_s"] for line in metrics_file.read_text().splitlines()]
    steps = len(times) // rounds
    return [statistics.mean(times[i + 1 : i + steps - 1]) for i in range(0, len(times), steps)]


class PlainLoop:
    """A hand-written loop: gradient and clipped AdamW in one jit, over one fixed batch."""

    def __init__(self, program: TrainProgram):
        settings = program.job.optimizer
        self._network = program.network
        self._rule = optax.chain(
            optax.clip_by_global_norm(settings.clip_norm or 1.0),
            optax.adamw(settings.learning_rate, settings.beta1, settings.beta2),
        )
        self._step: Callable[..., Any] = jax.jit(self._update, donate_argnums=(0, 1))
        self._params = program.initial_state().params
        self._moments = jax.jit(self._rule.init)(self._params)

    def run(self, batch: Batch, steps: int) -> float:
        """Returns the seconds per step, from the end of the first one to that of the last."""
        self._make(batch, 1)
        began = time.perf_counter()
        self._make(batch, steps - 1)
        return (time.perf_counter() - began) / (steps - 1)

    def _make(self, batch: Batch, steps: int) -> None:
        loss = None
        for _ in range(steps):
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
