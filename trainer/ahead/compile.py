"""Compiles the programs of one process of a world that does not exist yet."""

from pathlib import Path

import jax

from trainer.checkpoint import tree
from trainer.contract.config.job import Job
from trainer.contract.config.loader import load
from trainer.contract.planning.plan import Plan
from trainer.contract.storage.cache_dirs import make_cache_folder
from trainer.data import cache_lock
from trainer.data.loader import abstract_batch, batch_shardings
from trainer.distributed import initialize, mesh
from trainer.distributed.stand_in import stand_in
from trainer.evaluation.evaluate import Evaluator
from trainer.programs import executables, keys
from trainer.programs.counts import Counts, counting
from trainer.step.train_step import TrainProgram


def compile_for(job_file: Path, plan_file: Path, process: int) -> Counts:
    """Keeps the programs where a process of that plan finds them, and counts the work on them.

    Waits while another process compiles the same ones, and then finds them.
    """
    job = load(job_file, Job, []).value
    plan = Plan.model_validate_json(plan_file.read_text(encoding="utf-8"))
    initialize.configure()
    stand_in(plan.world, process)
    devices = mesh.build(plan)
    key = keys.of_job(job, plan, devices.devices.flat[0])
    lock = make_cache_folder(executables.FOLDER) / f"{key}.lock"
    with cache_lock.held(lock, waiting=lambda *_: None):
        return _compile(job, plan, devices)


def _compile(job: Job, plan: Plan, devices: jax.sharding.Mesh) -> Counts:
    """Compiles the step, the evaluation, and the digests of the state that a restart restores."""
    with counting() as counts, executables.kept(job, plan, list(devices.devices.flat)):
        program = TrainProgram.of(job, plan, devices)
        with jax.set_mesh(devices):
            state = jax.tree.map(_placed, program.shapes, program.shardings)
            batch = jax.tree.map(_placed, abstract_batch(job, plan), batch_shardings(devices))
            program.compiled_step(batch)
            tree.prepare_digests(tree.flatten(state).values())
            if job.eval:
                Evaluator(program).compiled(state.weights, batch)
    return counts


def _placed(leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
