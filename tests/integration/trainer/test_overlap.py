"""Weights are gathered beside other work, as the compiler decides for each generation of chips.

uv run --group tpu_compiler pytest -m tpu_compiler

Those of a v5e, which gathers large ones so, are in test_strategies.py.
"""

import pytest

from tests.support.jobs import corpus_of, job_of
from tests.support.sampling import sampled
from tests.support.worlds import slice_world
from trainer.analysis import collectives, topology
from trainer.contract.planning.planner import resolve
from trainer.data.loader import abstract_batch
from trainer.distributed import mesh as meshes
from trainer.step.train_step import TrainProgram

pytestmark = pytest.mark.tpu_compiler
MODEL = {"layers": 2, "d_model": 512, "heads": 4, "kv_heads": 4, "d_ff": 2048, "remat": "full"}


@pytest.mark.parametrize("accelerator", sampled(["v4-16", "v5p-16", "v6e-8", "v7x-16"], ["v7x-16"]))
def test_the_weights_of_layers_are_gathered_beside_other_work(accelerator: str) -> None:
    world = slice_world(accelerator, 1)
    job = job_of(model=MODEL, data={"seq_len": 512, "global_batch": world.devices})
    plan = resolve(job, world, corpus_of(job))
    program = TrainProgram.of(job, plan, meshes.build(plan, topology.devices(world)))
    text = program.compiled_step(abstract_batch(job, plan)).as_text()
    sent = collectives.of(text or "", plan)
    gathers = [one for one in sent if one.kind == "all-gather"]
    for part in ("attention", "mlp"):
        assert [one.overlapped for one in gathers if one.part == part] == [True, True]
