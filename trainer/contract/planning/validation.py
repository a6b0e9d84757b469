"""Rejects conflicting settings of a job before anything is laid out: (key, message) pairs.

This includes features that a custom model does not support.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from pathlib import Path

from trainer.contract.config.data import Data
from trainer.contract.config.errors import suggest
from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel, Model
from trainer.contract.config.optimizer import Optimizer
from trainer.contract.planning import model_parts, sequence_chunks, sharding_rules
from trainer.contract.planning.parameter_shapes import Parameter
from trainer.contract.planning.plan import World
from trainer.contract.storage.chat_template import chat_template
from trainer.contract.storage.corpus import EXAMPLE
from trainer.contract.storage.tokenizer_info import VocabularyError, vocab_size, vocabulary

KEY = "model.module"
HUGGING_FACE = "config.json"
"""The file that identifies a Hugging Face folder."""


def problems(job: Job) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for each feature that needs the built-in decoder."""
    if not isinstance(job.model, CustomModel):
        return
    if job.sample:
        yield "sample", "a custom model (model.module) cannot generate text. Remove this section"
    if job.lora:
        yield "lora", "a custom model (model.module) does not support adapters. Remove this section"
    if job.distill:
        yield "distill", "a custom model (model.module) has its own loss. Remove this section"
    source = job.checkpoint and job.checkpoint.init_from
    if source and (Path(source).expanduser() / HUGGING_FACE).is_file():
        yield (
            "checkpoint.init_from",
            f"a custom model (model.module) cannot start from a Hugging Face folder ({source}). "
            "Set this key to one of its runs",
        )
    if job.optimizer.z_loss:
        yield (
            "optimizer.z_loss",
            "a custom model (model.module) computes its own loss. Remove this key, or add the "
            "term in the model",
        )


def axis_problems(parameters: Sequence[Parameter]) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for each logical axis without a rule, and each mesh axis used twice."""
    for one in parameters:
        what = f"{one.name} {one.shape}"
        unknown = [name for name in dict.fromkeys(one.axes) if name not in sharding_rules.RULES]
        for name in unknown:
            meant = suggest(name, sharding_rules.RULES)
            yield KEY, f"{what}: unknown logical axis '{name}'.{meant} {known()}"
        rules = [] if unknown else [sharding_rules.RULES[name] for name in one.axes]
        split = [axis for rule in rules for axis in sharding_rules.joined_axes(rule)]
        for axis in dict.fromkeys(split):
            # A custom model has no pipeline, whatever its arrays.
            if axis != "pipeline" and split.count(axis) > 1:
                yield KEY, f"{what}: {axis} would split more than one dim of {one.axes}"


def known() -> str:
    """Returns the logical axis names as text, grouped by the mesh axis that splits them."""
    names: dict[str | None, list[str]] = {}
    for name, axis in sharding_rules.RULES.items():
        names.setdefault(axis, []).append(name)
    split = [f"{', '.join(of)} (split by {axis})" for axis, of in names.items() if axis]
    return f"Logical axes: {'; '.join(split)}; {', '.join(names[None])} (not split)"


Problems = Iterator[tuple[str, str]]
REMATERIALIZING = ("dots", "full")
"""Rematerialization policies that compute activations again, which rounds and offload need."""


def job_problems(job: Job, world: World) -> Problems:
    """Yields conflicts between the job's sections that do not depend on the mesh."""
    yield from problems(job)
    if isinstance(job.model, Model):
        yield from _model(job.model, job.data.seq_len)
    yield from _vocabulary(job)
    yield from _paths(job.data)
    yield from _chats(job.data)
    yield from _preferences(job)
    yield from _distillation(job)
    yield from _schedule(job.optimizer, job.steps)
    yield from _profile(job, world)


def mesh_problems(job: Job, mesh: Mapping[str, int]) -> Problems:
    """Yields conflicts of a mesh that fits the devices with the model and the data."""
    if isinstance(job.model, Model):
        yield from _heads_and_experts(job.model, mesh)
    yield from _stages(job, mesh["pipeline"])
    yield from _context(job, mesh)
    yield from _batch(job.data, mesh)


def teacher_problems(model: Model, seq_len: int, mesh: Mapping[str, int]) -> Problems:
    """Yields conflicts of a teacher's model with the length of sequences and with the mesh."""
    if model.max_positions is not None and seq_len > model.max_positions:
        yield (
            "data.seq_len",
            f"{seq_len} is more than the teacher's {model.max_positions} learned positions",
        )
    for key, message in _heads_and_experts(model, mesh):
        yield key, f"for the teacher of distill: {message}"


def divisors(n: int) -> list[int]:
    """Returns the divisors of n in ascending order."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def sizes_text(n: int) -> str:
    """Returns the axis sizes that divide n, as text."""
    return ", ".join(map(str, divisors(n)))


def _model(model: Model, seq_len: int) -> Problems:
    if model.heads % model.kv_heads:
        yield (
            "model.kv_heads",
            f"{model.heads} query heads are not divisible by {model.kv_heads} key/value heads",
        )
    if model.offload and model.remat not in REMATERIALIZING:
        yield (
            "model.offload",
            "with model.remat: none, all activations stay on the devices. Set model.remat to full "
            "or dots, or remove this key",
        )
    yield from _positions(model, seq_len)
    yield from _windows(model)
    if model.latent_attention:
        yield from model_parts.latent_attention(model, model.latent_attention)
    elif model.rope_scaling and model.rope_scaling.mscale is not None:
        yield "model.rope_scaling.mscale", "applies only to latent_attention. Remove this key"
    if model.moe:
        yield from model_parts.experts(model, model.moe)
    if model.precision and model.moe and model.moe.capacity_factor is None:
        yield (
            "model.precision",
            f"{model.precision} needs experts with a capacity: the grouped products of dropless "
            "ones have no 8-bit form. Set model.moe.capacity_factor, or remove this key",
        )


def _positions(model: Model, seq_len: int) -> Problems:
    rows = model.max_positions
    if model.positions == "rotary":
        key, width = "head_dim", model.head_dim
        if latent := model.latent_attention:
            key, width = "latent_attention.rotary_dim", latent.rotary_dim
        if width % 2:
            yield f"model.{key}", f"must be even for rotary positions, found {width}"
        if rows is not None:
            yield (
                "model.max_positions",
                "applies only to learned positions. Remove this key, or set positions: learned",
            )
        return
    for key in ("rope_scaling", "local_rope_theta"):
        if getattr(model, key) is not None:
            yield f"model.{key}", "applies only to rotary positions. Remove this key"
    if rows is None:
        yield (
            "model.max_positions",
            f"learned positions need this key. Set it to at least seq_len ({seq_len})",
        )
    elif seq_len > rows:
        yield "data.seq_len", f"{seq_len} is more than the model's {rows} learned positions"


def _windows(model: Model) -> Problems:
    if model.sliding_window is None:
        for key in ("global_every", "local_rope_theta"):
            if getattr(model, key) is not None:
                yield (
                    f"model.{key}",
                    "applies only to layers with a sliding window. Remove this key, or set "
                    "sliding_window",
                )
    elif model.global_every is not None and model.global_every > model.layers:
        yield (
            "model.global_every",
            f"{model.global_every} is more than the model's {model.layers} layers. Remove this key",
        )


def _vocabulary(job: Job) -> Problems:
    try:
        tokens, size = vocabulary(job.data).size, vocab_size(job)
    except VocabularyError as error:
        yield f"data.{error.key}", str(error)
        return
    if size < tokens:
        yield "model.vocab_size", f"{size} is less than the tokenizer's {tokens} tokens"


def _paths(data: Data) -> Problems:
    for number, part in enumerate(data.parts):
        key = f"{_key_of(data, number)}.path"
        if part.source == "stdlib" and part.path is not None:
            yield key, "source 'stdlib' has no path. Remove this key, or set source: text"
        if part.source != "stdlib" and part.path is None:
            yield key, f"source '{part.source}' needs a path, such as {EXAMPLE}"
    if data.mixture is not None and data.path is not None:
        yield "data.path", "each source of a mixture has its own path. Remove this key"


def _chats(data: Data) -> Problems:
    for number, part in enumerate(data.parts):
        if part.source != "chat":
            continue
        try:
            has_template = chat_template(part) is not None
        except VocabularyError as error:
            yield f"data.{error.key}", str(error)
            continue
        if not has_template and part.fields.prompt is None:
            yield (
                f"{_key_of(data, number)}.fields",
                "messages need a chat template, and the tokenizer has none (chat_template in the "
                "tokenizer_config.json beside it). Set the fields prompt and answer instead",
            )


def _preferences(job: Job) -> Problems:
    """Yields conflicts of pairs, and of the training on them, with the rest of the job."""
    for number, part in enumerate(job.data.parts):
        key = f"{_key_of(job.data, number)}.source"
        if job.dpo and part.source != "preference":
            yield key, f"dpo needs pairs, found '{part.source}'. Set source: preference"
        if part.source == "preference" and not job.dpo:
            yield key, "pairs are for the section dpo. Set it, for example to {beta: 0.1}"
    if not job.dpo:
        return
    if not job.lora:
        yield (
            "lora",
            "dpo needs adapters: its reference is the model without them. Set this section, for "
            "example to {rank: 16}",
        )
    if not job.data.mask_across_documents:
        yield (
            "data.mask_across_documents",
            "with dpo, a rejected completion must not attend to the chosen one. Remove this key",
        )
    if job.optimizer.z_loss:
        yield "optimizer.z_loss", "dpo has its own loss. Remove this key"
    if isinstance(job.model, Model) and job.model.dropout:
        yield (
            "model.dropout",
            "dpo compares the model with its reference, without noise. Remove this key",
        )


def _distillation(job: Job) -> Problems:
    """Yields the sections that a distillation does not support."""
    if not job.distill:
        return
    for key in ("dpo", "lora", "integrity"):
        if getattr(job, key):
            yield key, "distill does not support this section. Remove one of them"
    if job.optimizer.z_loss:
        yield "optimizer.z_loss", "distill has its own loss. Remove this key"


def _key_of(data: Data, number: int) -> str:
    """Returns the job file's key of a part of the data."""
    return "data" if data.mixture is None else f"data.mixture.{number}"


def _schedule(settings: Optimizer, steps: int) -> Problems:
    falling = settings.decay_steps
    if falling is None:
        return
    if settings.schedule != "wsd":
        yield (
            "optimizer.decay_steps",
            f"schedule '{settings.schedule}' does not use this key. Remove it, or set "
            "schedule: wsd",
        )
    if settings.warmup_steps + falling > steps:
        yield (
            "optimizer.decay_steps",
            f"{falling} plus {settings.warmup_steps} steps of warm-up exceed the run's {steps} "
            "steps",
        )


def _profile(job: Job, world: World) -> Problems:
    if job.profile is None:
        return
    last, most = job.profile.steps[1], max(job.profile.processes, default=0)
    if last > job.last_step:
        yield "profile.steps", f"the last step is {last}, but the run has {job.last_step} steps"
    if most >= world.processes:
        yield (
            "profile.processes",
            f"found {most}, but the processes of {world.processes} hosts are 0 to "
            f"{world.processes - 1}",
        )


def _heads_and_experts(model: Model, mesh: Mapping[str, int]) -> Problems:
    heads, tensor = model.heads, mesh["tensor"]
    if heads % tensor:
        yield (
            "mesh.tensor",
            f"{heads} query heads are not divisible by tensor {tensor}. Valid sizes: "
            f"{sizes_text(heads)}",
        )
    experts, parts = model.moe, mesh["expert"]
    if experts is None:
        if parts > 1:
            yield (
                "mesh.expert",
                f"found {parts}, but the model has no experts (model.moe). Remove this key",
            )
        return
    if experts.count % parts:
        yield (
            "mesh.expert",
            f"{experts.count} experts are not divisible by {parts}. Valid sizes: "
            f"{sizes_text(experts.count)}",
        )
    if mesh["context"] > 1 and experts.capacity_factor is not None:
        yield (
            "mesh.context",
            f"found {mesh['context']}, but the capacity of experts is counted in whole "
            "sequences. Remove this key, or set model.moe.capacity_factor=null",
        )


def _context(job: Job, mesh: Mapping[str, int]) -> Problems:
    """Yields conflicts of a sequence, or of heads, that do not divide into equal parts."""
    parts, asked = mesh["context"], job.mesh.context_attention
    if job.distill and parts > 1:
        yield "mesh.context", f"found {parts}, but distill needs whole sequences. Remove this key"
        return
    if isinstance(job.model, CustomModel):
        if asked != "auto":
            yield (
                "mesh.context_attention",
                "a custom model (model.module) computes attention itself. Remove this key",
            )
    elif asked == "heads" and parts > 1 and job.model.kv_heads % (parts * mesh["tensor"]):
        yield (
            "mesh.context_attention",
            f"{job.model.kv_heads} key/value heads are not divisible by context {parts} x tensor "
            f"{mesh['tensor']}. Set it to chunks",
        )
    length, chunks = job.data.seq_len, sequence_chunks.count(job, mesh)
    if length % parts == 0 and length % chunks == 0:
        return
    valid = [
        n
        for n in divisors(length)
        if length % sequence_chunks.count(job, {**mesh, "context": n}) == 0
    ]
    what = f"the {chunks} chunks of context {parts}" if chunks > 1 else f"context {parts}"
    yield (
        "mesh.context",
        f"seq_len {length} is not divisible by {what}. Valid sizes: {', '.join(map(str, valid))}",
    )


def _stages(job: Job, stages: int) -> Problems:
    """Yields conflicts of a pipeline's stages, which all run the same program."""
    rounds = job.mesh.pipeline_rounds
    if stages == 1:
        if rounds > 1:
            yield (
                "mesh.pipeline_rounds",
                f"found {rounds}, but the layers are on one stage. Set mesh.pipeline, or remove "
                "this key",
            )
        return
    if job.dpo:
        yield "mesh.pipeline", f"found {stages}, but dpo runs on one stage. Remove this key"
        return
    if job.distill:
        yield "mesh.pipeline", f"found {stages}, but distill runs on one stage. Remove this key"
        return
    if not isinstance(job.model, Model):
        yield (
            "mesh.pipeline",
            f"found {stages}, but a custom model (model.module) has no stages. Remove this key",
        )
        return
    if job.model.moe and (dense := job.model.moe.dense_layers):
        yield (
            "mesh.pipeline",
            f"found {stages}, but the first {dense} layers have no experts "
            "(model.moe.dense_layers), and all stages run the same program. Remove this key",
        )
        return
    layers, period = job.model.layers, job.model.layer_period
    groups, rest = divmod(layers, period)
    if rounds > 1:
        yield from _rounds(job, stages)
    kinds = f" in whole groups of {period} (model.global_every)" if period > 1 else ""
    if groups % stages == rest == 0:
        of_stage = groups // stages
        if of_stage % rounds:
            yield (
                "mesh.pipeline_rounds",
                f"the {layers // stages} layers of a stage are not divisible by {rounds} rounds"
                f"{kinds}. Valid values: {sizes_text(of_stage)}",
            )
        return
    yield (
        "mesh.pipeline",
        f"{layers} layers are not divisible by {stages} stages{kinds}. Valid sizes: "
        f"{'1' if rest else sizes_text(groups)}",
    )


def _rounds(job: Job, stages: int) -> Problems:
    """Yields conflicts of a pipeline's rounds with the micro-batches and rematerialization."""
    rounds, micro = job.mesh.pipeline_rounds, job.data.grad_accum_steps
    if micro % stages:
        above = -(-micro // stages) * stages
        yield (
            "data.grad_accum_steps",
            f"with mesh.pipeline_rounds {rounds}, micro-batches pass through {stages} stages in "
            f"groups of {stages}, found {micro}. Set it to a multiple of {stages}, such as {above}",
        )
    if job.decoder.remat not in REMATERIALIZING:
        yield (
            "model.remat",
            f"with mesh.pipeline_rounds {rounds}, the backward pass would keep weights of every "
            f"tick, found {job.decoder.remat}. Set it to {' or '.join(REMATERIALIZING)}",
        )


def _batch(data: Data, mesh: Mapping[str, int]) -> Problems:
    unit = sharding_rules.row_shards(mesh) * data.grad_accum_steps
    if data.global_batch % unit == 0:
        return
    below = data.global_batch // unit * unit
    nearest = f"{below} or {below + unit}" if below else f"{unit}"
    axes = sharding_rules.mesh_text({axis: mesh[axis] for axis in sharding_rules.BATCH_AXES})
    if data.grad_accum_steps > 1:
        axes += f" x {data.grad_accum_steps} micro-batches"
    yield (
        "data.global_batch",
        f"{data.global_batch} is not divisible by {axes} = {unit}. The nearest valid value: "
        f"{nearest}",
    )
