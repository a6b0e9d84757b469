"""The parameters of LoRA adapters: low-rank matrices beside frozen kernels.

A kernel W that maps x to y gets an adapter of two matrices: y = x W + alpha / rank (x A) B. B is
initialized to zero, so the model initially equals its base.

References:
    LoRA: https://arxiv.org/abs/2106.09685
"""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from trainer.contract.config.errors import suggest
from trainer.contract.config.lora import Lora
from trainer.contract.planning.parameter_shapes import Parameter

KERNEL = ".kernel"
A, B = ".lora.a", ".lora.b"
"""Name suffixes of an adapter's matrices; they replace KERNEL."""
WITHOUT = ("expert", "router")
"""Axes of kernels without adapters: experts, of which each token uses a few, and the router."""


def inputs(kernel: Parameter) -> int:
    """Returns the number of input dims of a stacked kernel, without the layer dim.

    The embed dim is all of the inputs or all of the outputs.
    """
    axes = kernel.axes[1:]
    return 1 if axes[0] == "embed" else axes.index("embed")


def targets(lora: Lora | None, parameters: Sequence[Parameter]) -> list[Parameter]:
    """Returns the kernels that get an adapter."""
    if lora is None:
        return []
    return [
        one
        for one in parameters
        if _takes_one(one)
        and (lora.targets is None or any(fnmatchcase(one.name, p) for p in lora.targets))
    ]


def adapters(lora: Lora | None, parameters: Sequence[Parameter]) -> list[Parameter]:
    """Returns the adapter matrices, which are trained in place of a model's `parameters`."""
    return [
        matrix for kernel in targets(lora, parameters) if lora for matrix in _pair(lora, kernel)
    ]


def _pair(lora: Lora, kernel: Parameter) -> tuple[Parameter, Parameter]:
    stem, cut = kernel.name.removesuffix(KERNEL), 1 + inputs(kernel)
    (layers, *shape), (layer, *axes) = kernel.shape, kernel.axes
    first = Parameter(
        stem + A, (layers, *shape[: cut - 1], lora.rank), (layer, *axes[: cut - 1], "rank")
    )
    second = Parameter(
        stem + B, (layers, lora.rank, *shape[cut - 1 :]), (layer, "rank", *axes[cut - 1 :])
    )
    return first, second


def problems(
    lora: Lora | None, base: str | None, parameters: Sequence[Parameter]
) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for each invalid setting; `base` is the source of the base model."""
    if lora is None:
        return
    if base is None:
        yield (
            "checkpoint.init_from",
            "lora needs a base model. Set this key to a run, a checkpoint or a Hugging Face folder",
        )
    able = [one.name for one in parameters if _takes_one(one)]
    for number, pattern in enumerate(lora.targets or ()):
        if not any(fnmatchcase(name, pattern) for name in able):
            yield f"lora.targets.{number}", _no_target(pattern, able, parameters)


def _no_target(pattern: str, able: Sequence[str], parameters: Sequence[Parameter]) -> str:
    others = [one.name for one in parameters if fnmatchcase(one.name, pattern)]
    known = f"Kernels that support adapters: {', '.join(able)}"
    if others:
        return (
            f"'{pattern}' matches only {', '.join(others)}, without support for adapters. {known}"
        )
    names = [part for name in able for part in (name, name.split(".")[-2])]
    meant = suggest(pattern.strip("*."), names)
    return f"'{pattern}' matches no kernel.{meant} {known}"


def _takes_one(parameter: Parameter) -> bool:
    is_of_layers = parameter.axes[0] == "layer" and parameter.name.endswith(KERNEL)
    return is_of_layers and not set(WITHOUT) & set(parameter.axes)
