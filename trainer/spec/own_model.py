"""What a job with a model of the user's own cannot have, and what its parameters must say."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.spec import rules
from trainer.spec.job import Job
from trainer.spec.model import OwnModel
from trainer.spec.shapes import Parameter
from trainer.spec.suggest import suggest

KEY = "model.module"
HUGGING_FACE = "config.json"
"""The file that makes a folder one of theirs."""


def problems(job: Job) -> Iterator[tuple[str, str]]:
    """(key, message) of all that only the decoder can do."""
    if not isinstance(job.model, OwnModel):
        return
    if job.sample:
        yield "sample", "a model of your own (model.module) writes no text: leave it out"
    if job.lora:
        yield "lora", "a model of your own (model.module) has no adapters: leave it out"
    source = job.checkpoint and job.checkpoint.init_from
    if source and (Path(source).expanduser() / HUGGING_FACE).is_file():
        yield (
            "checkpoint.init_from",
            f"{source} is of Hugging Face, and no weights of your own model (model.module): name "
            "a run of it",
        )
    if job.optimizer.z_loss:
        yield (
            "optimizer.z_loss",
            "the loss is that of your own model (model.module): leave it out, or add it there",
        )


def axis_problems(parameters: Sequence[Parameter]) -> Iterator[tuple[str, str]]:
    """(key, message) of every logical axis that no rule is for, or that another one stands in the
    way of.
    """
    for one in parameters:
        what = f"{one.name} {one.shape}"
        unknown = [name for name in dict.fromkeys(one.axes) if name not in rules.RULES]
        for name in unknown:
            yield KEY, f"{what}: no axis is called '{name}'.{suggest(name, rules.RULES)} {known()}"
        split = [] if unknown else [axis for name in one.axes if (axis := rules.RULES[name])]
        for axis in dict.fromkeys(split):
            if split.count(axis) > 1:
                yield KEY, f"{what}: {axis} can split one dim, and its axes are {one.axes}"


def known() -> str:
    """The names that a dim can have, by what splits it."""
    names: dict[str | None, list[str]] = {}
    for name, axis in rules.RULES.items():
        names.setdefault(axis, []).append(name)
    split = [f"{', '.join(of)} (split by {axis})" for axis, of in names.items() if axis]
    return f"There are: {'; '.join(split)}; {', '.join(names[None])} (not split)"
