"""A run's parts in this process, on some of its eight CPU devices."""

from dataclasses import dataclass
from typing import Any

import jax

from tests.support.jobs import corpus_of, world_of
from trainer.checkpoint.initial_state import with_teacher
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan, World
from trainer.contract.planning.planner import resolve
from trainer.contract.records.teacher import teacher_model
from trainer.data import token_cache
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.packing import Batch
from trainer.distributed import mesh as meshes
from trainer.distributed.stop_vote import StopRequest, StopVote
from trainer.model import custom
from trainer.step.train_state import StepMetrics, TrainState
from trainer.step.train_step import TrainProgram


@dataclass(frozen=True)
class Bench:
    """A job on a mesh, ready to make steps."""

    plan: Plan
    program: TrainProgram
    loader: BatchLoader
    compiled: Any
    text: str
    """Of the compiled step."""
    first: TrainState[Any]
    """Step 0, on the host."""

    @classmethod
    def of(cls, job: Job, world: World) -> "Bench":
        plan = resolve(job, world, corpus_of(job), custom.parameters, teacher_model)
        mesh = meshes.build(plan, jax.devices()[: world.devices])
        program = TrainProgram.of(job, plan, mesh)
        loader = BatchLoader(job, plan.batch, token_cache.load(job.data), batch_shardings(mesh))
        step = program.compiled_step(next(loader.training(1)))
        nothing = StopVote(mesh).array(StopRequest.NOTHING)

        def compiled(
            state: TrainState[jax.Array], batch: Batch, limits: jax.Array = program.no_limits
        ) -> Any:
            return step(program.schedule, state, batch, nothing, limits)

        first = jax.device_get(with_teacher(program.initial_state(), program)[0])
        return cls(plan, program, loader, compiled, step.as_text() or "", first)

    def initial(self) -> TrainState[jax.Array]:
        """Step 0, made once: a step takes its state away."""
        return jax.device_put(self.first, self.program.shardings)

    def run(self, steps: int) -> tuple[TrainState[jax.Array], list[StepMetrics]]:
        """The state after `steps` steps from the start, and what each said."""
        state, metrics = self.initial(), []
        batches = self.loader.training(1)
        for _ in range(steps):
            state, one = self.compiled(state, next(batches))
            metrics.append(jax.device_get(one))
        return state, metrics

    def batch(self, step: int) -> Batch:
        return next(self.loader.training(step))


KEPT_BENCHES = 12
"""Benches kept for later tests. The compiled programs of one take some 400 of the 65,530 mappings
that Linux allows a process (vm.max_map_count): JAX crashes when there are no more."""

_kept: dict[str, Bench] = {}
"""The last ones asked for, the newest last."""


def bench(job: Job, devices: int = 1, **facts: Any) -> Bench:
    """A job on one process with `devices` devices; the same one for the same job, if it is kept."""
    world = world_of(1, devices, **facts)
    key = job.model_dump_json() + world.model_dump_json()
    _kept[key] = _kept.pop(key, None) or Bench.of(job, world)
    if len(_kept) > KEPT_BENCHES:
        del _kept[next(iter(_kept))]
    return _kept[key]
