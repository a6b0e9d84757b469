"""Rejects meshes that the model, the sequences or the batch do not divide into."""

from collections.abc import Mapping
from math import isqrt

from trainer.contract.config.data import Data
from trainer.contract.config.errors import Problems
from trainer.contract.config.job import Job
from trainer.contract.config.model import REMATERIALIZING, CustomModel, Model
from trainer.contract.planning import sequence_chunks, sharding_rules


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
    if stages == 1:
        yield from _one_stage(job)
        return
    if reason := _without_stages(job):
        yield "mesh.pipeline", f"found {stages}, but {reason}. Remove this key"
        return
    if job.decoder.offload:
        # Seen with libtpu 0.0.42: "Bitcast cannot have different memory spaces".
        yield (
            "model.offload",
            f"with mesh.pipeline {stages}, activations stay on the devices: XLA cannot compile "
            "their copies to the host's memory. Remove one of the two",
        )
    if job.mesh.pipeline_rounds > 1:
        yield from _rounds(job, stages)
    if job.mesh.pipeline_schedule == "1f1b":
        yield from _alternating(job)
    yield from _division(job.decoder, stages, job.mesh.pipeline_rounds)


def _one_stage(job: Job) -> Problems:
    """Yields keys of a pipeline that a job without one sets."""
    remedy = "but the layers are on one stage. Set mesh.pipeline, or remove this key"
    if job.mesh.pipeline_rounds > 1:
        yield "mesh.pipeline_rounds", f"found {job.mesh.pipeline_rounds}, {remedy}"
    if job.mesh.pipeline_schedule != "gpipe":
        yield "mesh.pipeline_schedule", f"found {job.mesh.pipeline_schedule}, {remedy}"


def _without_stages(job: Job) -> str | None:
    """Returns why the job cannot have stages, or None if it can."""
    if job.dpo:
        return "dpo runs on one stage"
    if job.distill:
        return "distill runs on one stage"
    if not isinstance(job.model, Model):
        return "a custom model (model.module) has no stages"
    if job.model.moe and (dense := job.model.moe.dense_layers):
        return (
            f"the first {dense} layers have no experts (model.moe.dense_layers), and all stages "
            "run the same program"
        )
    return None


def _division(model: Model, stages: int, rounds: int) -> Problems:
    """Yields a conflict when the layers do not divide into stages, or those into rounds."""
    layers, period = model.layers, model.layer_period
    groups, rest = divmod(layers, period)
    kinds = f" in whole groups of {period} (model.global_every)" if period > 1 else ""
    of_stage, left = divmod(groups, stages)
    if left or rest:
        yield (
            "mesh.pipeline",
            f"{layers} layers are not divisible by {stages} stages{kinds}. Valid sizes: "
            f"{'1' if rest else sizes_text(groups)}",
        )
    elif of_stage % rounds:
        yield (
            "mesh.pipeline_rounds",
            f"the {layers // stages} layers of a stage are not divisible by {rounds} rounds"
            f"{kinds}. Valid values: {sizes_text(of_stage)}",
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


def _alternating(job: Job) -> Problems:
    """Yields conflicts of forward and backward passes in turn with rounds and rematerialization."""
    rounds, remat = job.mesh.pipeline_rounds, job.decoder.remat
    if rounds > 1:
        yield (
            "mesh.pipeline_schedule",
            f"found 1f1b with mesh.pipeline_rounds {rounds}, and 1f1b has one round. Remove "
            "one of them",
        )
    if remat not in REMATERIALIZING:
        yield (
            "model.remat",
            "with mesh.pipeline_schedule 1f1b, stages would keep weights of several ticks, found "
            f"{remat}. Set it to {' or '.join(REMATERIALIZING)}",
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
