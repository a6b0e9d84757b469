"""Layers with and without a sliding window, in one loop, as the TPU compiler gets them.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

import re

import pytest

from tests.support.jobs import corpus_of, job_of
from tests.support.worlds import slice_world
from trainer.analysis import topology
from trainer.contract.planning.planner import resolve
from trainer.data.loader import abstract_batch
from trainer.distributed import mesh as meshes
from trainer.step.train_step import TrainProgram

pytestmark = pytest.mark.tpu_compiler
MODEL = {
    "layers": 5, "d_model": 256, "heads": 4, "kv_heads": 4, "head_dim": 128, "d_ff": 512,
    "sliding_window": 128, "global_every": 2, "norm_position": "both", "attn_logit_softcap": 50.0,
}  # fmt: skip


def test_a_loop_over_pairs_of_layers_has_a_kernel_for_each_window() -> None:
    world = slice_world("v5e-8", 1)
    job = job_of(model=MODEL, data={"seq_len": 512, "global_batch": world.devices})
    plan = resolve(job, world, corpus_of(job))
    assert plan.attention == "splash"
    program = TrainProgram.of(job, plan, meshes.build(plan, topology.devices(world)))
    text = program.compiled_step(abstract_batch(job, plan)).as_text() or ""
    # Two layers in the loop and the fifth after it.
    assert len(re.findall(r"%splash_mha_fwd\S* = ", text)) == 3
