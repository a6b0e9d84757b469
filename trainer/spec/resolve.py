"""Job + World -> Plan: the mesh, the batch split and every cross-check, decided once.

The launcher calls it before anything starts; a trainer that was started by hand calls it for the
one process that it is.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from trainer.spec import groups, layout, lora, own_model, rules, shapes
from trainer.spec.chat import chat_template
from trainer.spec.corpus import EXAMPLE
from trainer.spec.data import Data
from trainer.spec.job import Job
from trainer.spec.job import Mesh as MeshSizes
from trainer.spec.model import Model, OwnModel
from trainer.spec.plan import ArrayPlan, BatchSplit, Corpus, Plan, World
from trainer.spec.vocabulary import VocabularyError, vocabulary

FLOAT32_BYTES = 4
TPU_LANES = 128
DTYPE_BYTES = {"float32": FLOAT32_BYTES, "bfloat16": 2}
Dtype = Literal["float32", "bfloat16"]
Build = Callable[[Job], Sequence[shapes.Parameter]]
"""The parameters of a model of the user's own. Raises PlanError."""


class PlanError(ValueError):
    """What does not fit together; `problems` holds (key of the job file, message) pairs."""

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


def resolve(job: Job, world: World, corpus: Corpus, build: Build | None = None) -> Plan:
    """The plan of a job on a world. Raises PlanError with everything that does not fit.

    `build` is asked for a model of the user's own, once all else fits.
    """
    problems = _Problems()
    _check_job(job, problems)
    _check_schedule(job, problems)
    _check_profile(job, world, problems)
    mesh = _mesh_sizes(job.mesh, world, problems)
    if mesh:
        _check_mesh(job, mesh, problems)
    problems.stop()
    order = layout.device_order(world, mesh)
    batch = _batch_split(job, world, mesh, order, problems)
    problems.stop()
    vocab, model = _model(job, mesh, build)
    problems.found += own_model.axis_problems(model)
    problems.stop()
    adapters = lora.adapters(job.lora, model)
    base = job.checkpoint and job.checkpoint.init_from
    problems.found += lora.problems(job.lora, base, model)
    problems.found += groups.problems(job.optimizer, [one.name for one in adapters or model])
    problems.stop()
    dtype = _compute_dtype(job, world)
    return Plan(
        world=world,
        mesh=mesh,
        device_order=order,
        batch=batch,
        parameters=tuple(
            [_frozen(one, mesh, dtype) if adapters else _array_plan(one, mesh) for one in model]
            + [_array_plan(one, mesh) for one in adapters]
        ),
        compute_dtype=dtype,
        attention=_attention(job, world, batch),
        experts=_experts(job, world, mesh),
        padded_vocab=vocab,
        corpus=corpus,
        warnings=tuple(_warnings(job, world, mesh, model + adapters)),
    )


def vocab_size(job: Job) -> int:
    """Tokens that the model tells apart, before padding. Raises VocabularyError."""
    given = None if isinstance(job.model, OwnModel) else job.decoder.vocab_size
    return given or vocabulary(job.data).size


def _model(
    job: Job, mesh: dict[str, int], build: Build | None
) -> tuple[int, list[shapes.Parameter]]:
    """Its vocabulary, padded where that is ours to do, and its parameters."""
    if isinstance(job.model, OwnModel):
        assert build
        return vocab_size(job), list(build(job))
    vocab = shapes.padded_vocab(vocab_size(job), mesh["tensor"])
    return vocab, shapes.parameters(job.decoder, vocab)


def _check_job(job: Job, problems: _Problems) -> None:
    data = job.data
    problems.found += own_model.problems(job)
    if isinstance(job.model, Model):
        _check_model(job.model, data.seq_len, problems)
    try:
        tokens = vocabulary(data).size
        problems.check(
            vocab_size(job) >= tokens,
            "model.vocab_size",
            f"the tokenizer has {tokens} tokens, found {vocab_size(job)}",
        )
    except VocabularyError as error:
        problems.check(False, f"data.{error.key}", str(error))
    _check_paths(data, problems)
    _check_chats(data, problems)


def _check_chats(data: Data, problems: _Problems) -> None:
    for number, part in enumerate(data.parts):
        if part.source != "chat":
            continue
        try:
            has_template = chat_template(part) is not None
        except VocabularyError as error:
            problems.check(False, f"data.{error.key}", str(error))
            continue
        problems.check(
            has_template or part.fields.prompt is not None,
            "data.fields" if data.mixture is None else f"data.mixture.{number}.fields",
            "messages need a chat template, and the tokenizer has none (chat_template in the "
            "tokenizer_config.json beside it): say which fields are prompt and answer",
        )


def _check_paths(data: Data, problems: _Problems) -> None:
    for number, part in enumerate(data.parts):
        key = "data.path" if data.mixture is None else f"data.mixture.{number}.path"
        problems.check(
            (part.source != "stdlib") == (part.path is not None),
            key,
            f"source '{part.source}' needs a path, such as {EXAMPLE}"
            if part.source != "stdlib"
            else f"source '{part.source}' takes no path: leave it out, or say source: text",
        )
    problems.check(
        data.mixture is None or data.path is None,
        "data.path",
        "the sources of a mixture have their own: leave this out",
    )


def _check_model(model: Model, seq_len: int, problems: _Problems) -> None:
    problems.check(
        model.heads % model.kv_heads == 0,
        "model.kv_heads",
        f"{model.heads} query heads do not divide by {model.kv_heads} key/value heads",
    )
    is_rotary, rows = model.positions == "rotary", model.max_positions
    problems.check(
        not is_rotary or model.head_dim % 2 == 0,
        "model.head_dim",
        f"rotary positions turn pairs: {model.head_dim} is odd",
    )
    problems.check(
        is_rotary or model.rope_scaling is None,
        "model.rope_scaling",
        "it is of positions: rotary, and the model's are learned",
    )
    problems.check(
        is_rotary == (rows is None),
        "model.max_positions",
        "rotary positions need none: leave it out, or say positions: learned"
        if is_rotary
        else f"learned positions need it: say how many there are, at least seq_len {seq_len}",
    )
    problems.check(
        rows is None or seq_len <= rows,
        "data.seq_len",
        f"{seq_len} is more than the model's {rows} learned positions",
    )
    if experts := model.experts:
        problems.check(
            experts.per_token <= experts.count,
            "model.experts.per_token",
            f"found {experts.per_token}, and there are {experts.count} experts",
        )
        problems.check(model.biases != "all", "model.biases", "experts have none: say qkv or none")


def _check_schedule(job: Job, problems: _Problems) -> None:
    settings = job.optimizer
    falling = settings.decay_steps
    problems.check(
        falling is None or settings.schedule == "wsd",
        "optimizer.decay_steps",
        f"schedule '{settings.schedule}' has none: say schedule: wsd, or leave it out",
    )
    problems.check(
        falling is None or settings.warmup_steps + falling <= job.steps,
        "optimizer.decay_steps",
        f"{falling} and {settings.warmup_steps} of warm-up are more than the run's {job.steps}",
    )


def _check_profile(job: Job, world: World, problems: _Problems) -> None:
    if job.profile is None:
        return
    last = job.profile.steps[1]
    problems.check(
        last <= job.steps, "profile.steps", f"the last is {last}, and the run has {job.steps}"
    )
    most = max(job.profile.processes, default=0)
    problems.check(
        most < world.processes,
        "profile.processes",
        f"found {most}; with {world.processes} hosts they count from 0 to {world.processes - 1}",
    )


def _mesh_sizes(asked: MeshSizes, world: World, problems: _Problems) -> dict[str, int]:
    """Axis sizes with the -1 filled in; empty where they cannot fit the devices."""
    data = world.slices if asked.data is None else asked.data
    sizes = {axis: getattr(asked, axis) for axis in rules.MESH_AXES} | {"data": data}
    free = [axis for axis, size in sizes.items() if size == -1]
    for axis, size in sizes.items():
        problems.check(
            size != 0, f"mesh.{axis}", "0 devices: an axis has 1 or more, or -1 for the rest"
        )
    problems.check(len(free) <= 1, "mesh", f"only one axis can be -1, found {' and '.join(free)}")
    if 0 in sizes.values() or len(free) > 1:
        return {}
    fixed = math.prod(size for size in sizes.values() if size != -1)
    shown = rules.mesh_text({axis: size for axis, size in sizes.items() if size != -1})
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
        f"{shown} {hint} of {world.processes} hosts x {world.devices_per_host}; "
        f"sizes that fit divide {world.devices}: {', '.join(map(str, divisors(world.devices)))}",
    )
    return {}


def _check_mesh_of(model: Model, mesh: dict[str, int], problems: _Problems) -> None:
    heads, tensor = model.heads, mesh["tensor"]
    fitting = ", ".join(str(n) for n in divisors(heads))
    problems.check(
        heads % tensor == 0,
        "mesh.tensor",
        f"{heads} query heads do not divide by tensor {tensor}; sizes that fit: {fitting}",
    )
    experts, parts = model.experts, mesh["expert"]
    problems.check(
        parts == 1 or (experts is not None and experts.count % parts == 0),
        "mesh.expert",
        f"{experts.count} experts do not divide by {parts}; sizes that fit: "
        f"{', '.join(map(str, divisors(experts.count)))}"
        if experts
        else f"found {parts}, and the model has no experts (model.experts): leave it out",
    )
    problems.check(
        mesh["context"] == 1 or experts is None or experts.capacity_factor is None,
        "mesh.context",
        f"found {mesh['context']}, and room of the model's experts is counted in whole sequences: "
        "leave it out, or say model.experts.capacity_factor=null",
    )


def _check_mesh(job: Job, mesh: dict[str, int], problems: _Problems) -> None:
    if isinstance(job.model, Model):
        _check_mesh_of(job.model, mesh, problems)
    length, parts = job.data.seq_len, mesh["context"]
    problems.check(
        length % parts == 0,
        "mesh.context",
        f"seq_len {length} does not divide by context {parts}; sizes that fit: "
        f"{', '.join(map(str, divisors(length)))}",
    )
    data, shards = job.data, rules.row_shards(mesh)
    unit = shards * data.micro_batches
    below = data.global_batch // unit * unit
    nearest = f"{below} or {below + unit}" if below else f"{unit}"
    axes = rules.mesh_text({axis: mesh[axis] for axis in rules.BATCH_AXES})
    if data.micro_batches > 1:
        axes += f" x {data.micro_batches} micro-batches"
    problems.check(
        data.global_batch % unit == 0,
        "data.global_batch",
        f"{data.global_batch} does not divide over {axes} = {unit}; the nearest that does: "
        f"{nearest}",
    )


def _batch_split(
    job: Job, world: World, mesh: dict[str, int], order: tuple[int, ...], problems: _Problems
) -> BatchSplit:
    shards = rules.row_shards(mesh)
    alike = {axis: mesh[axis] for axis in rules.MESH_AXES if axis not in rules.BATCH_AXES}
    rows_of: list[set[int]] = [set() for _ in range(world.processes)]
    for place, device in enumerate(order):
        rows_of[device // world.devices_per_host].add(place // math.prod(alike.values()))
    block_of = [frozenset(rows) for rows in rows_of]
    blocks = {block: number for number, block in enumerate(dict.fromkeys(block_of))}
    problems.check(
        sum(len(block) for block in blocks) == shards,
        "mesh.tensor" if mesh["context"] == 1 else "mesh.context",
        f"{rules.mesh_text(alike)} would cover parts of hosts of {world.devices_per_host} devices; "
        "take a divisor or a multiple of that",
    )
    rows_per_shard = job.data.global_batch // shards
    return BatchSplit(
        global_batch=job.data.global_batch,
        micro_batches=job.data.micro_batches,
        rows_per_device=rows_per_shard // job.data.micro_batches,
        positions_per_device=job.data.seq_len // mesh["context"],
        rows_per_process=rows_per_shard * len(block_of[0]),
        blocks=len(blocks),
        block_of_process=tuple(blocks[block] for block in block_of),
    )


def _array_plan(parameter: shapes.Parameter, mesh: dict[str, int]) -> ArrayPlan:
    spec = rules.partition(parameter.shape, parameter.axes, mesh)
    parts = math.prod(mesh[axis] for axis in spec if axis)
    return ArrayPlan(
        name=parameter.name,
        shape=parameter.shape,
        axes=parameter.axes,
        spec=spec,
        bytes_per_device=parameter.size // parts * FLOAT32_BYTES,
    )


def _frozen(parameter: shapes.Parameter, mesh: dict[str, int], dtype: Dtype) -> ArrayPlan:
    """Of a model that is not trained. Norms are computed in float32, and are small."""
    kept: Dtype = "float32" if "norm" in parameter.axes else dtype
    plan = _array_plan(parameter, mesh)
    size = plan.bytes_per_device // FLOAT32_BYTES * DTYPE_BYTES[kept]
    return plan.model_copy(update={"bytes_per_device": size, "is_trained": False, "dtype": kept})


def _compute_dtype(job: Job, world: World) -> Dtype:
    """`auto` is bfloat16 on chips made for it; CPUs are slower at it than at float32.

    A model of the user's own computes as it likes.
    """
    if isinstance(job.model, OwnModel):
        return "float32"
    if job.decoder.compute_dtype != "auto":
        return job.decoder.compute_dtype
    return "float32" if world.on_cpu else "bfloat16"


def _attention(job: Job, world: World, batch: BatchSplit) -> Literal["plain", "splash"]:
    """The kernel works on whole vectors of a TPU, of positions and of a head's numbers."""
    if isinstance(job.model, OwnModel):
        return "plain"
    sizes = (batch.positions_per_device, job.decoder.head_dim)
    fits = all(size % TPU_LANES == 0 for size in sizes)
    return "splash" if world.platform == "tpu" and not world.on_cpu and fits else "plain"


def _experts(job: Job, world: World, mesh: dict[str, int]) -> Literal["room", "ragged"]:
    """TPUs have a kernel for rows in groups; room is counted in whole sequences."""
    experts = job.model.experts if isinstance(job.model, Model) else None
    has_room = experts is not None and experts.capacity_factor is None
    on_tpu = world.platform == "tpu" and not world.on_cpu
    return "ragged" if has_room and (on_tpu or mesh["context"] > 1) else "room"


def _warnings(
    job: Job, world: World, mesh: dict[str, int], parameters: list[shapes.Parameter]
) -> list[str]:
    warnings = _replicated(mesh, parameters)
    if world.platform == "gpu" and mesh["tensor"] > world.devices_per_host:
        warnings.append(
            f"tensor {mesh['tensor']} leaves the host ({world.devices_per_host} GPUs): "
            "its collectives cross the network in every layer"
        )
    if job.optimizer.warmup_steps >= job.steps:
        warnings.append(f"the run of {job.steps} steps ends inside its warm-up")
    if mesh["data"] % world.slices:
        warnings.append(
            f"fsdp crosses {world.slices // math.gcd(mesh['data'], world.slices)} slices: "
            "parameters are gathered over the data-center network in every layer"
        )
    return warnings


def _replicated(mesh: dict[str, int], parameters: list[shapes.Parameter]) -> list[str]:
    """Dims that have a rule and are whole all the same, those that cost the most first."""
    costs: Counter[str] = Counter()
    for parameter in parameters:
        size = _array_plan(parameter, mesh).bytes_per_device
        for cause in rules.reasons(parameter.shape, parameter.axes, mesh):
            costs[cause] += size
    return [
        f"{cause}: replicated over that axis ({size / 2**20:,.3g} MiB of parameters per device)"
        for cause, size in costs.most_common()
    ]


def divisors(n: int) -> list[int]:
    """Ascending."""
    return [d for d in range(1, n + 1) if n % d == 0]
