"""The replay of steps of another run: where it starts, and the digests that it records.

The step is the program of the run, unchanged, because another program may round differently. A
second program computes the gradients again, for their digests.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from trainer.checkpoint.digests import digest, row_digests, row_digests_of_rounds
from trainer.checkpoint.exclusion_file import read_on_all
from trainer.checkpoint.initial_state import InitialState, at_step, begin
from trainer.checkpoint.tree import flatten
from trainer.contract.planning.plan import Plan, Replay
from trainer.contract.records.exclusions import NONE
from trainer.contract.records.replay_file import FILE, Digests, StepDigests
from trainer.contract.storage.paths import to_path
from trainer.data.packing import Batch
from trainer.distributed.mesh import replicated
from trainer.programs import executables
from trainer.step.spikes import RecentSteps
from trainer.step.train_state import StepMetrics, TrainState
from trainer.step.train_step import TrainProgram
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import Report

State = TrainState[jax.Array]
Step = Callable[[State, Batch, jax.Array, jax.Array], tuple[State, StepMetrics]]
LAYERS = "layers"
"""First part of the name of a parameter whose first dims are those of layers."""


def begin_replay(
    program: TrainProgram, plan: Plan, corpus_sha256: str, report: Report, events: Events
) -> InitialState:
    """Returns the state that a replay starts from. Raises what `at_step` and `begin` raise."""
    assert plan.replay
    excluded = read_on_all(to_path(plan.replay.exclusions)) if plan.replay.exclusions else NONE
    if plan.replay.checkpoint is None:
        return replace(begin(program, plan, None, report, events), excluded=excluded)
    source = to_path(plan.replay.checkpoint)
    with events.phase("restore"):
        state, about = at_step(source, program, corpus_sha256)
    report.print_line(f"replaying from step {about.step} of {about.job['name']}")
    return InitialState(
        state,
        about.step,
        about.examples,
        about.loss,
        about.base,
        recent=RecentSteps(about.recent),
        excluded=excluded,
    )


class Recorder:
    """Runs steps, and writes the digests of each one to a file, on process 0."""

    def __init__(self, program: TrainProgram, replay: Replay, run_dir: Path, process: int) -> None:
        self._program, self._first_step = program, replay.first_step
        self._path = run_dir / FILE if process == 0 else None
        self._gradients: jax.stages.Compiled | None = None
        whole = replicated(program.mesh)
        self._digest = partial(_call, jax.jit(digest, out_shardings=whole), whole)
        rounds = program.job.mesh.pipeline_rounds
        of_layers = row_digests if rounds == 1 else row_digests_of_rounds
        self._row_digests = partial(_call, jax.jit(of_layers, out_shardings=whole), whole)

    def recording(self, step: Step) -> Step:
        """Returns the step, which then waits for its results and records them."""

        def recorded(
            state: State, batch: Batch, requests: jax.Array, limits: jax.Array
        ) -> tuple[State, StepMetrics]:
            number = int(state.step) + 1
            if self._gradients is None:
                self._prepare(state, batch)
            if number < self._first_step:
                return step(state, batch, requests, limits)
            assert self._gradients
            gradients = self._digests(self._gradients(state, batch))
            state, metrics = step(state, batch, requests, limits)
            found = jax.device_get(metrics)
            self._write(number, found, gradients, self._digests(flatten(state)))
            return state, metrics

        return recorded

    def _prepare(self, state: State, batch: Batch) -> None:
        """Compiles all programs before the first step, whose time has no short limit yet."""
        function = self._program.gradient_function()
        self._gradients = executables.compiled(function, state, batch)
        self._digests(self._gradients(state, batch))
        self._digests(flatten(state))

    def _digest_of(self, name: str) -> Callable[[jax.Array], jax.Array]:
        return self._row_digests if LAYERS in name.split(".") else self._digest

    def _digests(self, arrays: Mapping[str, jax.Array]) -> dict[str, tuple[int, ...]]:
        """Returns the digests of each array: one per layer where it has all layers."""
        # One at a time: CPU devices can deadlock in collectives of several programs.
        own = {
            name: np.ravel(jax.device_get(self._digest_of(name)(array)))
            for name, array in arrays.items()
        }
        ends = np.cumsum([one.size for one in own.values()])[:-1]
        common = np.split(_of_all_hosts(np.concatenate([*own.values()])), ends)
        return {name: tuple(one.tolist()) for name, one in zip(own, common, strict=True)}

    def _write(self, step: int, metrics: StepMetrics, gradients: Digests, state: Digests) -> None:
        if self._path is None:
            return
        line = StepDigests(
            step=step,
            loss=_finite(metrics.loss),
            grad_norm=_finite(metrics.grad_norm),
            examples=f"{int(metrics.examples):08x}",
            gradients=gradients,
            state=state,
        ).line()
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line)


def _of_all_hosts(digests: np.ndarray) -> np.ndarray:
    return combined(multihost_utils.process_allgather(digests))


def combined(of_hosts: np.ndarray) -> np.ndarray:
    """Returns digests from those of each host, uint32 (hosts, digests).

    Where hosts have different copies of an array, the result depends on which copy is on which
    host: the replays of an audit give the work of a corrupt host to different processes.
    """
    first, weights = of_hosts[0], 2 * np.arange(len(of_hosts), dtype=np.uint32) + 1
    total = np.sum(of_hosts * weights[:, None], axis=0, dtype=np.uint32)
    return np.where(np.all(of_hosts == first, axis=0), first, total)


def _call(function: Any, result: jax.sharding.Sharding, array: jax.Array) -> jax.Array:
    return executables.call(function, array, result=result)


def _finite(value: jax.Array) -> float | None:
    """Returns None for a number that JSON does not have."""
    number = float(value)
    return number if math.isfinite(number) else None
