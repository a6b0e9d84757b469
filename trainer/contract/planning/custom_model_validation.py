"""Rejects settings of a job that a custom model does not support, and axes without a rule."""

from collections.abc import Sequence
from pathlib import Path

from trainer.contract.config.errors import Problems, suggest
from trainer.contract.config.job import Job
from trainer.contract.config.model import CustomModel
from trainer.contract.hugging_face.config import is_hugging_face
from trainer.contract.planning import sharding_rules
from trainer.contract.planning.parameter_shapes import Parameter

KEY = "model.module"


def custom_model_problems(job: Job) -> Problems:
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
    if source and is_hugging_face(Path(source).expanduser()):
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


def axis_problems(parameters: Sequence[Parameter]) -> Problems:
    """Yields (key, message) for each logical axis without a rule, and each mesh axis used twice."""
    for one in parameters:
        what = f"{one.name} {one.shape}"
        unknown = [name for name in dict.fromkeys(one.axes) if name not in sharding_rules.RULES]
        for name in unknown:
            meant = suggest(name, sharding_rules.RULES)
            yield KEY, f"{what}: unknown logical axis '{name}'.{meant} {known_axes()}"
        rules = [] if unknown else [sharding_rules.RULES[name] for name in one.axes]
        split = [axis for rule in rules for axis in sharding_rules.joined_axes(rule)]
        for axis in dict.fromkeys(split):
            # A custom model has no pipeline, whatever its arrays.
            if axis != "pipeline" and split.count(axis) > 1:
                yield KEY, f"{what}: {axis} would split more than one dim of {one.axes}"


def known_axes() -> str:
    """Returns the logical axis names as text, grouped by the mesh axis that splits them."""
    names: dict[str | None, list[str]] = {}
    for name, axis in sharding_rules.RULES.items():
        names.setdefault(axis, []).append(name)
    split = [f"{', '.join(of)} (split by {axis})" for axis, of in names.items() if axis]
    return f"Logical axes: {'; '.join(split)}; {', '.join(names[None])} (not split)"
