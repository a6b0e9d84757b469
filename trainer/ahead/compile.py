"""Compiles the programs of one process of a world that does not exist yet."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from trainer.checkpoint.digests import prepare_digests
from trainer.checkpoint.tree import flatten
from trainer.contract.config.data import TrainTokenizer
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, load
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol.environment import PROGRAMS_BYTES
from trainer.contract.protocol.reports import KeptPrograms
from trainer.contract.storage.cache_dirs import make_cache_folder
from trainer.contract.storage.compiled_programs import EXECUTABLES
from trainer.data import cache_lock, tokenizer
from trainer.data.loader import abstract_batch, batch_shardings
from trainer.distributed import initialize, mesh
from trainer.distributed.stand_in import stand_in
from trainer.evaluation.evaluate import Evaluator
from trainer.evaluation.generate import Sampler
from trainer.programs import executables, hot_start, keys
from trainer.programs.bundle import Bundle
from trainer.programs.counts import Counts, counting
from trainer.step.train_state import TrainState
from trainer.step.train_step import TrainProgram


def compile_for(job_file: Path, plan_file: Path, process: int) -> Counts:
    """Keeps the programs where a process of that plan finds them, and counts the work on them.

    Compiles those of an attempt that restores, if the run did not bring them. Waits while another
    process compiles the same ones, and then finds them.
    """
    with _stand_in(job_file, plan_file, process) as (job, plan, devices), counting() as counts:
        every = list(devices.devices.flat)
        brought = hot_start.find(job_file.parent, job, plan, process, every[0]).programs
        with executables.kept(job, plan, every, brought):
            _compile(TrainProgram.of(job, plan, devices), plan)
    return counts


def keep_for(job_file: Path, plan_file: Path, process: int, path: Path) -> KeptPrograms:
    """Writes the programs of a process of that plan to a file, for a run that begins elsewhere.

    They include those of a first attempt: the initialization, and a sample if its tokenizer is
    known before the data is read. Raises ConfigError when no programs are kept, OSError when the
    file cannot be written.
    """
    files: dict[str, bytes] = {}
    with _stand_in(job_file, plan_file, process) as (job, plan, devices), counting() as counts:
        every = list(devices.devices.flat)
        with executables.kept(job, plan, every, record=files) as kept:
            if kept is None:
                raise ConfigError([f"{PROGRAMS_BYTES}=0 keeps no programs; unset it"])
            program = TrainProgram.of(job, plan, devices)
            _compile(program, plan)
            _compile_first(program)
        made_from = keys.made_from(job, plan, every[0])
        size = Bundle(made_from, files).write(path)
    count = sum(name.startswith(kept.of_machine) for name in files)
    return KeptPrograms(programs=count, bytes=size, compilations=counts.compilations)


@contextmanager
def _stand_in(
    job_file: Path, plan_file: Path, process: int
) -> Iterator[tuple[Job, Plan, jax.sharding.Mesh]]:
    """Stands for a process of a world; yields job, plan and mesh, and holds the job's lock."""
    job = load(job_file, Job, []).value
    plan = Plan.model_validate_json(plan_file.read_text(encoding="utf-8"))
    initialize.configure()
    stand_in(plan.world, process)
    devices = mesh.build(plan)
    key = keys.of_job(job, plan, devices.devices.flat[0])
    lock = make_cache_folder(EXECUTABLES) / f"{key}.lock"
    with cache_lock.held(lock, waiting=lambda *_: None):
        yield job, plan, devices


def _compile(program: TrainProgram, plan: Plan) -> None:
    """Compiles the step, the evaluation, and the digests of the state that a restart restores."""
    with jax.set_mesh(program.mesh):
        state = _state(program)
        shardings = batch_shardings(program.mesh)
        batch = jax.tree.map(_placed, abstract_batch(program.job, plan), shardings)
        program.compiled_step(batch)
        prepare_digests(flatten(state).values())
        if program.job.eval:
            Evaluator(program).compiled(state.weights, batch)


def _compile_first(program: TrainProgram) -> None:
    """Compiles what only a first attempt or the end of a run needs."""
    job = program.job
    if not (job.checkpoint and job.checkpoint.init_from):
        program.compiled_initialization()
    if job.sample and not isinstance(job.data.tokenizer, TrainTokenizer):
        with jax.set_mesh(program.mesh):
            sampler = Sampler(program, job.sample, tokenizer.of(job.data))
            sampler.prepare(_state(program).weights)


def _state(program: TrainProgram) -> TrainState[jax.ShapeDtypeStruct]:
    """Returns the shapes of the state's leaves, with shardings."""
    return jax.tree.map(_placed, program.shapes, program.shardings)


def _placed(leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
