"""Where arrays lie: logical axis -> mesh axis, with a fallback and its reason.

One table makes every kind of parallelism: the sizes of the mesh axes alone decide whether a run is
data parallel, fully sharded, tensor parallel or a mix.
"""

import math
from collections.abc import Mapping

MESH_AXES = ("data", "fsdp", "expert", "context", "tensor")
"""Slowest first: `data` crosses slices, `tensor` stays on the nearest neighbours."""

BATCH_AXES = ("data", "fsdp", "expert")
"""The mesh axes over which the rows of a batch are split."""

TOKEN_AXES = (*BATCH_AXES, "context")
"""Those over which its tokens are split: `context` splits the positions of each row."""

RARE_AXES = ("expert", "context")
"""Those that few jobs have: shown where there are any, and left as they are by the search."""

EXPERT_BATCH_AXES = ("data", "fsdp")
"""The same where experts are split: each has its tokens of all rows along its own axis."""

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
    # Layers are scanned: to split them would move every layer's weights in every step.
    "layer": None,
}


def row_shards(mesh: Mapping[str, int]) -> int:
    """Into how many parts the rows of a batch are split."""
    return math.prod(mesh[axis] for axis in BATCH_AXES)


def token_shards(mesh: Mapping[str, int]) -> int:
    """Into how many parts the tokens of a batch are split."""
    return math.prod(mesh[axis] for axis in TOKEN_AXES)


def mesh_text(mesh: Mapping[str, int]) -> str:
    """A mesh in words; of rare axes only those that there are."""
    shown = {axis: size for axis, size in mesh.items() if axis not in RARE_AXES or size > 1}
    return " x ".join(f"{axis} {size}" for axis, size in shown.items())


def partition(
    shape: tuple[int, ...], axes: tuple[str, ...], mesh: Mapping[str, int]
) -> tuple[str | None, ...]:
    """The mesh axis that splits each dim; None for a dim that is whole on every device.

    A dim that does not divide by its mesh axis stays whole: see `reasons`.
    """
    return tuple(
        axis if axis is not None and mesh[axis] > 1 and dim % mesh[axis] == 0 else None
        for dim, axis in zip(shape, (RULES[name] for name in axes), strict=True)
    )


def reasons(shape: tuple[int, ...], axes: tuple[str, ...], mesh: Mapping[str, int]) -> list[str]:
    """Why dims that have a rule are whole all the same, one text each."""
    return [
        f"{name} {dim} does not divide by {axis} {mesh[axis]}"
        for dim, name in zip(shape, axes, strict=True)
        if (axis := RULES[name]) is not None and dim % mesh[axis]
    ]
