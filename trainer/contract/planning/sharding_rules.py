"""Sharding of arrays: logical axis -> mesh axis, with a fallback and its reason.

One table covers every kind of parallelism: the sizes of the mesh axes alone decide whether a run is
data parallel, fully sharded, tensor parallel or a mix.

References:
    Shardings as annotations: GSPMD, https://arxiv.org/abs/2105.04663
    `fsdp`: ZeRO, stage 3, https://arxiv.org/abs/1910.02054
    `tensor`: Megatron-LM, section 3, https://arxiv.org/abs/1909.08053
    `expert`: GShard, https://arxiv.org/abs/2006.16668
    `context`: Llama 3, section 3.3.2, https://arxiv.org/abs/2407.21783
    `pipeline`: GPipe, https://arxiv.org/abs/1811.06965
    `vocab` over `pipeline`: Yeung et al., https://arxiv.org/abs/2411.05288
"""

import math
from collections.abc import Mapping

MESH_AXES = ("pipeline", "data", "fsdp", "expert", "context", "tensor")
"""Mesh axes, slowest first: `pipeline` and `data` cross slices, `tensor` stays on the nearest
neighbours."""

BATCH_AXES = ("data", "fsdp", "expert")
"""The mesh axes over which the rows of a batch are split."""

TOKEN_AXES = (*BATCH_AXES, "context")
"""The mesh axes over which the tokens of a batch are split: `context` splits each row."""

RARE_AXES = ("pipeline", "expert", "context")
"""Mesh axes that few jobs use: shown only above size 1."""

EXPERT_BATCH_AXES = ("data", "fsdp")
"""The mesh axes that split rows where `expert` splits another dim: along `expert`, each expert has
its tokens of all rows."""

TOGETHER = "+"
"""Joins the mesh axes that split a dim together, the first one into the largest parts."""

RULES: dict[str, str | None] = {
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    # Of attention that is split by heads along `context`, after the exchange of heads.
    "whole_sequence_heads": "tensor+context",
    "mlp": "tensor",
    # Stages share the vocabulary: only activations pass between them, no copies of weights.
    "vocab": "pipeline+tensor",
    "head_dim": None,
    "position": None,
    "sequence": "context",
    "expert": "expert",
    "router": None,
    "latent": None,
    "rank": None,
    "norm": None,
    "round": None,
    # A stage of the pipeline computes its layers. No other axis splits them: they are scanned, and
    # every layer's weights would move in every step.
    "layer": "pipeline",
}


def row_shards(mesh: Mapping[str, int]) -> int:
    """Returns the number of parts that the rows of a batch are split into."""
    return math.prod(mesh[axis] for axis in BATCH_AXES)


def token_shards(mesh: Mapping[str, int]) -> int:
    """Returns the number of parts that the tokens of a batch are split into."""
    return math.prod(mesh[axis] for axis in TOKEN_AXES)


def mesh_text(mesh: Mapping[str, int]) -> str:
    """Returns a mesh as text; rare axes appear only above size 1."""
    shown = {axis: size for axis, size in mesh.items() if axis not in RARE_AXES or size > 1}
    return " x ".join(f"{axis} {size}" for axis, size in shown.items())


def joined_axes(entry: str | None) -> tuple[str, ...]:
    """Returns the mesh axes that an entry of a spec or a rule joins; none for None."""
    return tuple(entry.split(TOGETHER)) if entry else ()


def is_split_by(axis: str, spec: tuple[str | None, ...]) -> bool:
    """Returns whether a mesh axis splits a dim, alone or together with others."""
    return any(axis in joined_axes(entry) for entry in spec)


def parts(entry: str | None, mesh: Mapping[str, int]) -> int:
    """Returns the number of parts that an entry of a spec splits a dim into."""
    return math.prod(mesh[axis] for axis in joined_axes(entry))


def mesh_axes(spec: tuple[str | None, ...]) -> tuple[str | tuple[str, ...] | None, ...]:
    """Returns the entries of a spec in the form that JAX takes."""
    return tuple(joined_axes(entry) if entry and TOGETHER in entry else entry for entry in spec)


def partition(
    shape: tuple[int, ...], axes: tuple[str, ...], mesh: Mapping[str, int]
) -> tuple[str | None, ...]:
    """Returns the mesh axes that split each dim, or None for a dim that is whole on every device.

    Axes that split a dim together are joined by `+`. A dim that is not divisible by its mesh axes
    stays whole: see `reasons`.
    """
    split = [_larger_than_one(name, mesh) for name in axes]
    return tuple(
        entry if entry and dim % parts(entry, mesh) == 0 else None
        for dim, entry in zip(shape, split, strict=True)
    )


def _larger_than_one(name: str, mesh: Mapping[str, int]) -> str:
    """Returns the mesh axes of a logical axis that have more than one device, joined."""
    return TOGETHER.join(axis for axis in joined_axes(RULES[name]) if mesh[axis] > 1)


def reasons(shape: tuple[int, ...], axes: tuple[str, ...], mesh: Mapping[str, int]) -> list[str]:
    """Returns why dims that have a rule stay whole, one text each."""
    return [
        f"{name} {dim} is not divisible by {split} {parts(split, mesh)}"
        for dim, name in zip(shape, axes, strict=True)
        if (split := _larger_than_one(name, mesh)) and dim % parts(split, mesh)
    ]
