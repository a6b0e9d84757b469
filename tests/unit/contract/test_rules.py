"""Hand-written layouts of a small model on three meshes."""

import pytest

from tests.support.worlds import CORPUS, V4_32, tiny_job
from trainer.contract.planning.planner import resolve

FSDP = {
    "embedding.table": (None, "fsdp"),
    "layers.attention_norm.scale": (None, None),
    "layers.attention.query.kernel": (None, "fsdp", None, None),
    "layers.attention.key.kernel": (None, "fsdp", None, None),
    "layers.attention.value.kernel": (None, "fsdp", None, None),
    "layers.attention.output.kernel": (None, None, None, "fsdp"),
    "layers.mlp_norm.scale": (None, None),
    "layers.mlp.gate.kernel": (None, "fsdp", None),
    "layers.mlp.up.kernel": (None, "fsdp", None),
    "layers.mlp.down.kernel": (None, None, "fsdp"),
    "final_norm.scale": (None,),
    "output.kernel": ("fsdp", None),
}
BOTH = {
    **FSDP,
    "embedding.table": ("tensor", "fsdp"),
    "layers.attention.query.kernel": (None, "fsdp", "tensor", None),
    "layers.attention.key.kernel": (None, "fsdp", "tensor", None),
    "layers.attention.value.kernel": (None, "fsdp", "tensor", None),
    "layers.attention.output.kernel": (None, "tensor", None, "fsdp"),
    "layers.mlp.gate.kernel": (None, "fsdp", "tensor"),
    "layers.mlp.up.kernel": (None, "fsdp", "tensor"),
    "layers.mlp.down.kernel": (None, "tensor", "fsdp"),
    "output.kernel": ("fsdp", "tensor"),
}
REPLICATED = {name: (None,) * len(spec) for name, spec in FSDP.items()}


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        ({"fsdp": 16}, FSDP),
        ({"fsdp": 8, "tensor": 2}, BOTH),
        ({"data": 16, "fsdp": 1}, REPLICATED),
    ],
    ids=["fully sharded", "fsdp and tensor", "data parallel"],
)
def test_the_mesh_alone_decides_where_parameters_lie(mesh, expected) -> None:
    job = tiny_job(model={"preset": "tiny", "tied_embeddings": False}, mesh=mesh)
    plan = resolve(job, V4_32, CORPUS)
    assert {array.name: array.spec for array in plan.parameters} == expected
