"""Job + World -> Plan: the mesh, the batch split and each array's sharding, decided once.

The launcher plans before any process starts. A trainer that is started by hand plans for its own
single process.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trainer.contract.config.job import Job
from trainer.contract.config.mesh import Mesh as MeshSizes
from trainer.contract.config.model import CustomModel, Model
from trainer.contract.planning import (
    accelerators,
    attention,
    custom_model_validation,
    job_validation,
    lora,
    mesh_layout,
    mesh_validation,
    parameter_groups,
    parameter_shapes,
    pipeline,
    sequence_chunks,
    sharding_rules,
)
from trainer.contract.planning.array_plans import array_plan, frozen
from trainer.contract.planning.chips import GPUS, TPUS
from trainer.contract.planning.plan import (
    BatchSplit,
    Corpus,
    Dtype,
    MoEKind,
    Plan,
    TeacherPlan,
    World,
)
from trainer.contract.planning.save_interval import SaveStatistics, assumed_cost_s
from trainer.contract.planning.teacher import job_of_teacher
from trainer.contract.storage.tokenizer_info import vocab_size

MIN_EXCHANGE_DEVICES = 4
"""Minimum number of devices along `expert` that exchange the rows of experts."""
STATE_COPIES = 3
"""Trained parameters and two moments of each, for the assumed cost of a save."""
Build = Callable[[Job], Sequence[parameter_shapes.Parameter]]
"""Function that returns the parameters of a custom model. Raises PlanError."""
ReadTeacher = Callable[[Job], Model]
"""Function that returns the model of a job's teacher. Raises PlanError."""


class PlanError(ValueError):
    """Raised for settings that conflict; `problems` holds (key of the job file, message) pairs."""

    def __init__(self, problems: list[tuple[str, str]]):
        super().__init__("\n".join(f"{key}: {message}" for key, message in problems))
        self.problems = problems


@dataclass
class _Problems:
    found: list[tuple[str, str]] = field(default_factory=list)

    def check(self, holds: bool, key: str, message: str) -> None:
        if not holds:
            self.found.append((key, message))

    def stop(self) -> None:
        if self.found:
            raise PlanError(self.found)


def resolve(
    job: Job,
    world: World,
    corpus: Corpus,
    build: Build | None = None,
    read_teacher: ReadTeacher | None = None,
) -> Plan:
    """Returns the plan of a job on a world. Raises PlanError with all problems found.

    `build` is called only for a custom model, and `read_teacher` only for a distillation, after the
    job, mesh and batch have passed all checks.
    """
    problems = _Problems()
    problems.found += job_validation.job_problems(job, world)
    mesh = _mesh_sizes(job.mesh, world, problems)
    if mesh:
        problems.found += mesh_validation.mesh_problems(job, mesh)
    problems.stop()
    order = mesh_layout.device_order(world, mesh)
    batch = _batch_split(job, world, mesh, order, problems)
    problems.stop()
    vocab, model = _model(job, mesh, build)
    problems.found += custom_model_validation.axis_problems(model)
    problems.stop()
    adapters = lora.adapters(job.lora, model)
    base = job.checkpoint and job.checkpoint.init_from
    problems.found += lora.problems(job.lora, base, model)
    problems.found += parameter_groups.problems(
        job.optimizer, [one.name for one in adapters or model]
    )
    problems.stop()
    dtype = _compute_dtype(job, world)
    kernel, unfit = attention.choose(job, world, dtype, batch.chunks)
    teacher = _teacher(job, world, mesh, batch, dtype, vocab, read_teacher)
    rounds = job.mesh.pipeline_rounds
    of_model, of_adapters = (
        [pipeline.in_rounds(one, rounds) for one in some] for some in (model, adapters)
    )
    plan = Plan(
        world=world,
        mesh=mesh,
        device_order=order,
        batch=batch,
        pipeline_rounds=rounds,
        pipeline_schedule=job.mesh.pipeline_schedule,
        parameters=tuple(
            [frozen(one, mesh, dtype) if adapters else array_plan(one, mesh) for one in of_model]
            + [array_plan(one, mesh) for one in of_adapters]
        ),
        compute_dtype=dtype,
        precision=job.model.precision if isinstance(job.model, Model) else None,
        attention=kernel,
        busiest_attention=_busiest_attention(job, batch),
        moe=_moe(job, world, mesh),
        padded_vocab=vocab,
        corpus=corpus,
        teacher=teacher,
        warnings=tuple(_warnings(job, world, mesh, model + adapters) + _whole_scores(unfit)),
    )
    return plan.model_copy(update={"save_statistics": _save_statistics(job, plan)})


def _save_statistics(job: Job, plan: Plan) -> SaveStatistics | None:
    """Returns what is known before the first save, if the job chooses its own interval."""
    if job.checkpoint is None or job.checkpoint.every_minutes != "auto":
        return None
    trained = sum(array.bytes_per_device for array in plan.trained)
    on_host = STATE_COPIES * trained * plan.world.devices_per_host
    return SaveStatistics(blocked_s=assumed_cost_s(on_host))


def _model(
    job: Job, mesh: dict[str, int], build: Build | None
) -> tuple[int, list[parameter_shapes.Parameter]]:
    """Returns the vocabulary size, padded for the built-in decoder, and the parameters."""
    if isinstance(job.model, CustomModel):
        assert build
        return vocab_size(job), list(build(job))
    parts = mesh["pipeline"] * mesh["tensor"]
    vocab = parameter_shapes.padded_vocab(vocab_size(job), parts)
    return vocab, parameter_shapes.parameters(job.decoder, vocab)


def _teacher(
    job: Job,
    world: World,
    mesh: dict[str, int],
    batch: BatchSplit,
    dtype: Dtype,
    vocab: int,
    read_teacher: ReadTeacher | None,
) -> TeacherPlan | None:
    """Returns the plan of the teacher; None without one. Raises PlanError when it does not fit."""
    if job.distill is None:
        return None
    assert read_teacher
    model = read_teacher(job)
    if problems := list(mesh_validation.teacher_problems(model, job.data.seq_len, mesh)):
        raise PlanError(problems)
    its_job = job_of_teacher(job, model)
    return TeacherPlan(
        model=model,
        parameters=tuple(
            frozen(one, mesh, dtype) for one in parameter_shapes.parameters(model, vocab)
        ),
        attention=attention.choose(its_job, world, dtype, batch.chunks)[0],
        moe=_moe(its_job, world, mesh),
    )


def _mesh_sizes(asked: MeshSizes, world: World, problems: _Problems) -> dict[str, int]:
    """Returns the axis sizes with -1 filled in; empty when they cannot fit the devices."""
    left = world.slices // math.gcd(world.slices, max(asked.pipeline, 1))
    data = left if asked.data is None else asked.data
    sizes = {axis: getattr(asked, axis) for axis in sharding_rules.MESH_AXES} | {"data": data}
    free = [axis for axis, size in sizes.items() if size == -1]
    for axis, size in sizes.items():
        problems.check(
            size != 0, f"mesh.{axis}", "must be at least 1, or -1 for the remaining devices"
        )
    problems.check(len(free) <= 1, "mesh", f"only one axis can be -1, found {' and '.join(free)}")
    if 0 in sizes.values() or len(free) > 1:
        return {}
    fixed = math.prod(size for size in sizes.values() if size != -1)
    shown = sharding_rules.mesh_text({axis: size for axis, size in sizes.items() if size != -1})
    if free and world.devices % fixed == 0:
        return {**sizes, free[0]: world.devices // fixed}
    if not free and fixed == world.devices:
        return sizes
    hint = (
        f"does not divide the {world.devices} devices"
        if free
        else f"is {fixed}, not {world.devices}"
    )
    problems.check(
        False,
        "mesh",
        f"{shown} {hint} of {world.hosts} hosts x {world.devices_per_host}; "
        f"sizes that fit divide {world.devices}: {mesh_validation.sizes_text(world.devices)}",
    )
    return {}


def _batch_split(
    job: Job, world: World, mesh: dict[str, int], order: tuple[int, ...], problems: _Problems
) -> BatchSplit:
    shards = sharding_rules.row_shards(mesh)
    # Along the axes inside those of the batch, devices hold the same rows; so do all stages.
    inside = {axis: mesh[axis] for axis in ("context", "tensor")}
    rows_of: list[set[int]] = [set() for _ in range(world.processes)]
    for position, device in enumerate(order):
        row = position // math.prod(inside.values()) % shards
        rows_of[device // world.devices_per_process].add(row)
    block_of = [frozenset(rows) for rows in rows_of]
    blocks = {block: number for number, block in enumerate(dict.fromkeys(block_of))}
    holders = "hosts" if world.processes_per_host == 1 else "processes"
    problems.check(
        sum(len(block) for block in blocks) == shards,
        "mesh.tensor" if mesh["context"] == 1 else "mesh.context",
        f"{sharding_rules.mesh_text(inside)} would split {holders} of {world.devices_per_process} "
        "devices unevenly. Use a divisor or a multiple of that number",
    )
    rows_per_shard = job.data.global_batch // shards
    return BatchSplit(
        global_batch=job.data.global_batch,
        grad_accum_steps=job.data.grad_accum_steps,
        rows_per_device=rows_per_shard // job.data.grad_accum_steps,
        positions_per_device=job.data.seq_len // mesh["context"],
        chunks=sequence_chunks.count(job, mesh),
        rows_per_process=rows_per_shard * len(block_of[0]),
        blocks=len(blocks),
        block_of_process=tuple(blocks[block] for block in block_of),
    )


def _compute_dtype(job: Job, world: World) -> Dtype:
    """Returns the compute dtype; `auto` is bfloat16, or float32 on CPUs, where bfloat16 is slower.

    The plan of a custom model has float32, but the model itself chooses its dtypes.
    """
    if isinstance(job.model, CustomModel):
        return "float32"
    if job.decoder.compute_dtype != "auto":
        return job.decoder.compute_dtype
    return "float32" if world.on_cpu else "bfloat16"


def _busiest_attention(job: Job, batch: BatchSplit) -> float:
    if isinstance(job.model, CustomModel) or batch.chunks == 1:
        return 1.0
    return sequence_chunks.busiest_share(job.decoder, job.data.seq_len, batch.chunks)


def _moe(job: Job, world: World, mesh: dict[str, int]) -> MoEKind:
    """Returns the method of grouped rows for experts without a limit, on TPU or with `context`.

    TPUs have a kernel for it. Capacity is counted in whole sequences. The devices along `expert`
    send each other a row for each choice, or all tokens. The plan has what is less. With fewer than
    MIN_EXCHANGE_DEVICES, it has the tokens: exchanged rows have a layout that is slow to sort.
    """
    moe = job.model.moe if isinstance(job.model, Model) else None
    if moe is None or moe.capacity_factor is not None:
        return "capacity"
    if world.platform == "tpu" and not world.on_cpu:
        sends_rows = mesh["expert"] >= max(moe.top_k, MIN_EXCHANGE_DEVICES)
        return "megablox_exchange" if sends_rows else "megablox"
    return "ragged" if mesh["context"] > 1 else "capacity"


def _warnings(
    job: Job, world: World, mesh: dict[str, int], parameters: list[parameter_shapes.Parameter]
) -> list[str]:
    warnings = _replicated(mesh, parameters)
    if world.platform == "gpu" and mesh["tensor"] > world.devices_per_host:
        warnings.append(
            f"tensor {mesh['tensor']} spans several hosts of {world.devices_per_host} GPUs: "
            "its collectives cross the network in every layer"
        )
    if job.optimizer.warmup_steps >= job.steps:
        warnings.append(
            f"the run ends during warm-up: {job.steps} steps, "
            f"optimizer.warmup_steps {job.optimizer.warmup_steps}"
        )
    *_, slices = mesh_layout.over_islands(mesh, world.slices)
    if slices > 1:
        warnings.append(
            f"fsdp spans {slices} slices: parameters are gathered over the data-center network in "
            "every layer"
        )
    return warnings + _bubble(job, mesh) + _precision(job, world)


def _whole_scores(unfit: str) -> list[str]:
    """Returns a warning if GPUs compute attention without a kernel; `unfit` is why."""
    if not unfit:
        return []
    return [f"attention writes whole arrays of scores to memory, without a GPU kernel: {unfit}"]


def _bubble(job: Job, mesh: dict[str, int]) -> list[str]:
    """Returns a warning if the stages of a pipeline are idle for much of the time."""
    stages, micro, rounds = mesh["pipeline"], job.data.grad_accum_steps, job.mesh.pipeline_rounds
    idle = pipeline.bubble(stages, micro, rounds)
    if idle < pipeline.LARGE_BUBBLE:
        return []
    return [
        f"the {stages} stages of the pipeline are idle {idle:.0%} of the time: "
        f"data.grad_accum_steps is {micro}, and {4 * stages} would make it "
        f"{pipeline.bubble(stages, 4 * stages, rounds):.0%}"
    ]


def _precision(job: Job, world: World) -> list[str]:
    """Returns a warning if the chips have no units for the products' format."""
    precision = job.model.precision if isinstance(job.model, Model) else None
    if precision is None:
        return []
    chip = accelerators.parse(world.accelerator)
    if precision in chip.peak_8bit_flops:
        return []
    faster = [name for name, of in (TPUS | GPUS).items() if precision in of.peak_8bit_flops]
    return [
        f"{chip.generation} has no units for {precision} (model.precision): its compiler converts "
        f"the values, so that a step is slower or hardly faster. Units: {', '.join(faster)}"
    ]


def _replicated(mesh: dict[str, int], parameters: list[parameter_shapes.Parameter]) -> list[str]:
    """Returns a warning for each dim that is replicated despite its rule, the costliest first."""
    costs: Counter[str] = Counter()
    for parameter in parameters:
        size = array_plan(parameter, mesh).bytes_per_device
        for cause in sharding_rules.reasons(parameter.shape, parameter.axes, mesh):
            costs[cause] += size
    return [
        f"{cause}: replicated over that axis ({size / 2**20:,.3g} MiB of parameters per device)"
        for cause, size in costs.most_common()
    ]
