"""Memory of a host during a run: a forecast from the job and the plan alone, in pure Python.

A phase is a moment of the run, and its parts are what is alive then; the peak is that of the
largest phase. Bytes are private: pages of files do not count, such as libraries and memory-mapped
tokens, because the kernel can drop them. On CPU devices, simulated accelerators included, all
arrays of the devices are in the memory of the host. Accelerators have their own. A host with
several processes needs as many times what one of them does.

`benchmarks/host_memory.py` measures the constants (`--calibrate`), and compares the forecast with
other runs.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trainer.contract.config.data import BYTES
from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel
from trainer.contract.estimates.activations import (
    by_layers,
    kept_per_token,
    offloaded_per_token,
)
from trainer.contract.estimates.memory import accumulates, logits_bytes, runs_at_once
from trainer.contract.planning import optimizer_state
from trainer.contract.planning.array_plans import FLOAT32_BYTES
from trainer.contract.planning.local_sums import local_bytes
from trainer.contract.planning.plan import ArrayPlan, BasePlan, Plan
from trainer.contract.protocol.host_memory import SLOTS

MIB = 1 << 20
PROCESS_BYTES = 115 * MIB
"""Private memory of a trainer that has imported everything."""
AGENTS_BYTES = 128 * MIB
"""Private memory of a host's Ray node with its agents, Slipway's actor and the reaper. Several
processes on a host share the node, which is less than half of it; the forecast counts it for each.
"""
CPU_PROGRAMS_BYTES = 345 * MIB
"""Private memory that XLA's CPU compiler takes for initialization and step, and largely keeps. It
hardly depends on the model: the layers are one loop."""
CPU_FURTHER_PROGRAM_BYTES = 60 * MIB
"""The same for each further program: evaluation, and sampling."""
ACCELERATOR_COMPILER_BYTES = 4 << 30
"""Memory of the TPU compiler for a large model, of which 16 devices need 1.4 GiB; see
launcher/planning/compiler.py. It has not been measured for GPUs."""
INITIALIZATION_COPIES = 5
"""Copies of the largest array while random weights are made, on a CPU device."""
TEXT_SHARD_BYTES, BYTES_PER_TEXT_BYTE = 8 * MIB, 40
"""Text that is tokenized at a time, and the memory for each of its bytes: see
trainer/data/token_shards.py."""
BYTE_TOKENIZER_BYTES = 80 * MIB
"""Memory in which the tokenizer `bytes` works on that much text."""
PREFETCHED_BATCHES = 8
"""Blocks of batches that the loader reads ahead: `READ` of trainer/data/pipeline.py."""
UNFINISHED_BATCHES = 3
"""One that its thread stacks from rows, which count twice, and one that goes to the devices."""
BYTES_PER_TOKEN, BYTES_PER_ROW = 5 * 4, 4
"""A token's id, target, segment, position and weight; an example's number."""
CHUNK_BYTES = 64 * MIB
"""Unit in which a save writes an array: trainer/checkpoint/saver.py. One is copied at a time. That
is before the peak of the next step on CPU devices."""
RESTORE_LIBRARY_BYTES = 15 * MIB
"""Private memory that Orbax takes when it first reads a checkpoint."""
RESTORE_PARTS = 8
"""Groups in which a restore reads its shards: `PARTS` of trainer/checkpoint/tree.py. One group is
in memory twice."""
EXPORT_FILE_BYTES = 5 * 10**9
"""Most bytes of a file of an export, whose tensors are in memory together: `SHARD_BYTES` of
trainer/hugging_face/exporter.py."""
SCALARS_BYTES = 1 << 20
"""Room for what a state has beside parameters and moments: counters, and padding."""


@dataclass(frozen=True)
class Phase:
    """A moment of a run, and the bytes of what is in a host's memory then."""

    name: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True)
class HostMemory:
    """The forecast of each host."""

    phases: tuple[Phase, ...]
    """In the order of a run: prepare (tokens), restore, compile, run, save."""
    export_bytes: int
    """Bytes that `launch checkpoints export` needs on the machine where it runs; 0 when the model
    cannot be exported."""

    @property
    def peak(self) -> Phase:
        """The phase that needs the most."""
        return max(self.phases, key=lambda phase: phase.total)

    def phase(self, name: str) -> Phase:
        """Returns a phase by name."""
        return next(phase for phase in self.phases if phase.name == name)


def host_memory(job: Job, plan: Plan, *, may_shrink: bool) -> HostMemory:
    """Returns the forecast of a host that saves and restores, if the job has checkpoints.

    `may_shrink`: whether the run may continue on fewer hosts, for which CPU hosts compile ahead.
    """
    on_cpu = plan.world.on_cpu
    always = {"process": PROCESS_BYTES, "agents": AGENTS_BYTES}
    kept = {"in-memory checkpoints": _in_memory(job, plan)}
    offloaded = {"offloaded moments": _moments(job, plan)}
    arrays = {"arrays": _arrays(job, plan)} if on_cpu else offloaded
    programs = {"programs": _programs(job)} if on_cpu else {}
    compiler = {"compiler": 0 if on_cpu else ACCELERATOR_COMPILER_BYTES}
    running = {
        **always, **programs, **arrays, "step": _step(job, plan),
        "offloaded activations": _offloaded(job, plan), "loader": _loader(job, plan),
        "standby process": _standby(job), **kept,
        "compilation ahead": PROCESS_BYTES + _programs(job) if on_cpu and may_shrink else 0,
    }  # fmt: skip
    made = {**arrays, **_initialization(plan)}
    of_process = [
        Phase("prepare", {**always, "tokenizer": _tokenizer(job)}),
        Phase("compile", {**always, **programs, **compiler, **made, **kept}),
        Phase("run", running),
    ]
    if job.checkpoint:
        of_process.append(Phase("save", {**running, "staging": staging_bytes(job, plan)}))
        reading = {**always, **arrays, "read buffers": _read_buffers(job, plan), **kept}
        of_process.insert(1, Phase("restore", reading))
    count = plan.world.processes_per_host
    phases = tuple(_of_processes(count, phase) for phase in of_process)
    return HostMemory(phases, _export(job, plan))


def standby_bytes(job: Job, plan: BasePlan) -> int:
    """Returns the bytes of the standby processes on a host; 0 if the job wants none."""
    return _standby(job) * plan.world.processes_per_host


def state_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes of the trained parameters and their moments on a process's devices."""
    trained = sum(array.bytes_per_device for array in plan.trained)
    per_device = trained + optimizer_state.bytes_per_device(job.optimizer, plan)
    return per_device * plan.world.devices_per_process


def checkpoint_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes of a checkpoint: trained parameters and moments, each once."""
    elements = sum(math.prod(array.shape) for array in plan.trained)
    return FLOAT32_BYTES * elements + optimizer_state.bytes_in_all(job.optimizer, plan)


def in_memory_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes of in-memory checkpoints on a host, of all its processes."""
    return _in_memory(job, plan) * plan.world.processes_per_host


def staging_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes that a save of a process holds beside the state.

    A process copies what it writes from its devices, and holds the copy until it is written. On CPU
    devices there is nothing to copy, but the next step cannot reuse the memory of the arrays that
    are being written. A save into the memory of hosts also copies all shards of its devices first.
    """
    held, whole = state_bytes(job, plan), checkpoint_bytes(job, plan)
    if plan.world.on_cpu:
        return min(held, whole)
    written = -(-whole // plan.world.processes)
    also_in_memory = bool(job.checkpoint and job.checkpoint.in_memory_every_steps)
    return written + min(CHUNK_BYTES, written) + (held if also_in_memory else 0)


def _standby(job: Job) -> int:
    return 0 if job.retries.standby_after_s is None else PROCESS_BYTES


def _in_memory(job: Job, plan: Plan) -> int:
    """Returns the bytes of a process's in-memory checkpoints: slots for itself and a neighbor."""
    if not (job.checkpoint and job.checkpoint.in_memory_every_steps):
        return 0
    kinds = 2 if plan.world.hosts > 1 else 1
    held = min(state_bytes(job, plan), checkpoint_bytes(job, plan))
    return SLOTS * kinds * (held + SCALARS_BYTES)


def _arrays(job: Job, plan: Plan) -> int:
    """Returns the bytes of parameters, moments and a teacher's weights on a process's devices."""
    parameters = sum(array.bytes_per_device for array in plan.parameters)
    per_device = (
        parameters + plan.teacher_bytes + optimizer_state.bytes_per_device(job.optimizer, plan)
    )
    return per_device * plan.world.devices_per_process


def _step(job: Job, plan: Plan) -> int:
    """Returns the bytes of a step beside the state, on CPU devices; 0 on accelerators.

    The gradients count twice, because the update holds copies of them. XLA's CPU compiler keeps all
    activations, whatever `remat` says. Those of a custom model are unknown and do not count.
    """
    if not plan.world.on_cpu:
        return 0
    trained = sum(array.bytes_per_device for array in plan.trained)
    accumulated = trained if accumulates(plan) else 0
    needed = 2 * trained + accumulated + local_bytes(job, plan)
    if not isinstance(job.model, CustomModel):
        needed += _activations(job, plan)
    return needed * plan.world.devices_per_process


def _activations(job: Job, plan: Plan) -> int:
    """Returns the bytes of activations on a CPU device, with a chunk of logits."""
    tokens = plan.batch.tokens_per_device
    keeps_all = job.decoder.model_copy(update={"remat": "none"})
    all_kept = job.model_copy(update={"model": keeps_all})
    kept = by_layers(all_kept, plan, runs_at_once(job, plan), kept_per_token)
    return tokens * kept + logits_bytes(job, plan, tokens)


def _offloaded(job: Job, plan: Plan) -> int:
    """Returns the bytes of the activations that a process's devices offload to its host."""
    if isinstance(job.model, CustomModel):
        return 0
    per_token = by_layers(job, plan, runs_at_once(job, plan), offloaded_per_token)
    return plan.batch.tokens_per_device * per_token * plan.world.devices_per_process


def _moments(job: Job, plan: Plan) -> int:
    """Returns the bytes of the moments that a process's devices offload to its host."""
    per_device = optimizer_state.offloaded_bytes(job.optimizer, plan)
    return per_device * plan.world.devices_per_process


def _programs(job: Job) -> int:
    further = (job.eval is not None) + (job.sample is not None)
    return CPU_PROGRAMS_BYTES + further * CPU_FURTHER_PROGRAM_BYTES


def _initialization(plan: Plan) -> dict[str, int]:
    """Returns the copies of the largest array that the devices make; none on accelerators."""
    if not plan.world.on_cpu:
        return {}
    return {
        "initialization": INITIALIZATION_COPIES
        * max(array.bytes_per_device for array in plan.parameters)
        * plan.world.devices_per_process
    }


def _tokenizer(job: Job) -> int:
    """Returns the bytes for tokenizing text; token files are mapped into memory as they are."""
    if all(part.source == "tokens" for part in job.data.parts):
        return 0
    if job.data.tokenizer == BYTES:
        return BYTE_TOKENIZER_BYTES
    return TEXT_SHARD_BYTES * BYTES_PER_TEXT_BYTE


def _loader(job: Job, plan: Plan) -> int:
    """Returns the bytes of the blocks of batches that a process has read ahead."""
    rows, length = plan.batch.rows_per_process, job.data.seq_len
    block = rows * (BYTES_PER_TOKEN * length + BYTES_PER_ROW)
    return (PREFETCHED_BATCHES + UNFINISHED_BATCHES) * block


def _read_buffers(job: Job, plan: Plan) -> int:
    """Returns the bytes of the library that reads, and of the arrays that are in memory twice."""
    on_device = [array.bytes_per_device for array in plan.trained]
    largest = max(on_device, default=0) * plan.world.devices_per_process
    group = max(state_bytes(job, plan) // RESTORE_PARTS, largest)
    return RESTORE_LIBRARY_BYTES + group


def _export(job: Job, plan: Plan) -> int:
    """Returns the bytes of an export in float32: a file's tensors and the largest array."""
    if isinstance(job.model, CustomModel):
        return 0
    sizes = [_whole_bytes(array) for array in plan.parameters]
    return PROCESS_BYTES + min(EXPORT_FILE_BYTES, sum(sizes)) + max(sizes)


def _whole_bytes(array: ArrayPlan) -> int:
    return FLOAT32_BYTES * math.prod(array.shape)


def _of_processes(count: int, phase: Phase) -> Phase:
    """Returns a phase of several processes, without the parts that they do not have."""
    return Phase(phase.name, {name: count * size for name, size in phase.parts.items() if size})
