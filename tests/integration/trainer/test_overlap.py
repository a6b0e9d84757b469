"""Weights and their gradients move beside other work, as the compiler of each generation decides.

uv run --group tpu_compiler pytest -m tpu_compiler

Those of a v5e, which gathers large ones so, are in test_strategies.py.
"""

import math
import re
from typing import Any

import pytest

from tests.support.jobs import corpus_of, job_of
from tests.support.sampling import sampled
from tests.support.worlds import slice_world
from trainer.analysis import collectives, topology
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import Collective
from trainer.data.loader import abstract_batch
from trainer.distributed import mesh as meshes
from trainer.step.train_step import TrainProgram

pytestmark = pytest.mark.tpu_compiler
MODEL = {"layers": 2, "d_model": 512, "heads": 4, "kv_heads": 4, "d_ff": 2048, "remat": "full"}
LARGE = {**MODEL, "d_model": 4096, "heads": 32, "kv_heads": 8, "d_ff": 14_336}


def compiled(accelerator: str, model: dict[str, Any], length: int, **mesh: Any) -> tuple[Plan, str]:
    """Returns the plan and the step's compiled program."""
    world = slice_world(accelerator, 1)
    stages = mesh.get("pipeline", 1)
    data = {"seq_len": length, "global_batch": world.devices, "grad_accum_steps": stages}
    job = job_of(model=model, data=data, mesh=mesh)
    plan = resolve(job, world, corpus_of(job))
    program = TrainProgram.of(job, plan, meshes.build(plan, topology.devices(world)))
    return plan, program.compiled_step(abstract_batch(job, plan)).as_text() or ""


def sent_by(accelerator: str, model: dict[str, Any], length: int) -> list[Collective]:
    plan, text = compiled(accelerator, model, length)
    return collectives.of(text, plan)


@pytest.mark.parametrize("accelerator", sampled(["v4-16", "v5p-16", "v6e-8", "v7x-16"], ["v7x-16"]))
def test_the_weights_of_layers_are_gathered_beside_other_work(accelerator: str) -> None:
    sent = sent_by(accelerator, MODEL, 512)
    gathers = [one for one in sent if one.kind == "all-gather"]
    for part in ("attention", "mlp"):
        assert [one.overlapped for one in gathers if one.part == part] == [True, True]


@pytest.mark.full
def test_few_chips_scatter_large_gradients_as_a_whole() -> None:
    """libtpu's default is to scatter them by permutes, which split each product by chip."""
    kinds = {one.kind for one in sent_by("v5p-16", LARGE, 4096)}
    assert "reduce-scatter" in kinds and "collective-permute" not in kinds


@pytest.mark.full
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_gradients_of_stages_keep_the_layout_of_their_products(schedule: str) -> None:
    """The compiler would copy them into tiles of two rows if they had a dim for the stage."""
    _, text = compiled("v6e-8", MODEL, 512, pipeline=2, pipeline_schedule=schedule)
    kernel = MODEL["d_model"] * MODEL["d_ff"]
    copied = re.findall(r"= bf16\[([\d,]+)\]\{[\d,]*:T\(2,128\)\S* (?:copy|fusion)\(", text)
    assert all(math.prod(map(int, dims.split(","))) < kernel for dims in copied)
