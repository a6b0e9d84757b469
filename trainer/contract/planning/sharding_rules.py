"""Sharding of arrays: logical axis -> mesh axis, with a fallback and its reason.

One table covers every kind of parallelism: the sizes of the mesh axes alone decide whether a run is
data parallel, fully sharded, tensor parallel or a mix.

References:
    Shardings as annotations: GSPMD, https://arxiv.org/abs/2105.04663
    `fsdp`: ZeRO, stage 3, https://arxiv.org/abs/1910.02054
    `tensor`: Megatron-LM, section 3, https://arxiv.org/abs/1909.08053
    `expert`: GShard, https://arxiv.org/abs/2006.16668
    `context`: Llama 3, section 3.3.2, https://arxiv.org/abs/2407.21783
"""

import math
from collections.abc import Mapping

MESH_AXES = ("data", "fsdp", "expert", "context", "tensor")
"""Mesh axes, slowest first: `data` crosses slices, `tensor` stays on the nearest neighbours."""

BATCH_AXES = ("data", "fsdp", "expert")
"""The mesh axes over which the rows of a batch are split."""

TOKEN_AXES = (*BATCH_AXES, "context")
"""The mesh axes over which the tokens of a batch are split: `context` splits each row."""

RARE_AXES = ("expert", "context")
"""Mesh axes that few jobs use: shown only above size 1, and not changed by the search."""

EXPERT_BATCH_AXES = ("data", "fsdp")
"""The mesh axes that split rows where `expert` splits another dim: along `expert`, each expert has
its tokens of all rows."""

RULES: dict[str, str | None] = {
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "head_dim": None,
    "position": None,
    "sequence": "context",
    "expert": "expert",
    "router": None,
    "rank": None,
    "norm": None,
    # Layers are scanned: splitting them would move every layer's weights in every step.
    "layer": None,
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


def partition(
    shape: tuple[int, ...], axes: tuple[str, ...], mesh: Mapping[str, int]
) -> tuple[str | None, ...]:
    """Returns the mesh axis that splits each dim, or None for a dim that is whole on every device.

    A dim that is not divisible by its mesh axis stays whole: see `reasons`.
    """
    return tuple(
        axis if axis is not None and mesh[axis] > 1 and dim % mesh[axis] == 0 else None
        for dim, axis in zip(shape, (RULES[name] for name in axes), strict=True)
    )


def reasons(shape: tuple[int, ...], axes: tuple[str, ...], mesh: Mapping[str, int]) -> list[str]:
    """Returns why dims that have a rule stay whole, one text each."""
    return [
        f"{name} {dim} is not divisible by {axis} {mesh[axis]}"
        for dim, name in zip(shape, axes, strict=True)
        if (axis := RULES[name]) is not None and dim % mesh[axis]
    ]
