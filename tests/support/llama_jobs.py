"""Llama 8B on accelerators of any kind, and its bounds."""

from tests.support.worlds import tpu_world
from trainer.contract.config.job import Job
from trainer.contract.estimates.roofline import Bounds, bounds
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import Corpus, World
from trainer.contract.planning.planner import resolve

CORPUS = Corpus(source="text", sha256=None)


def world_of(name: str, slices: int = 1) -> World:
    made = accelerators.parse(name)
    if made.topology and made.host_bounds:
        world = tpu_world(name, made.topology, made.host_bounds)
        return world.model_copy(update={"slices": slices, "simulated": False})
    return World(
        accelerator=name, platform=made.platform, simulated=False, slices=1,
        hosts_per_slice=made.hosts, devices_per_host=made.devices_per_host, topology=None,
        host_bounds=None,
    )  # fmt: skip


def job_of(rows: int, remat: str = "none", **mesh: int) -> Job:
    return Job.model_validate(
        {
            "name": "job",
            "steps": 10,
            "model": {"preset": "llama3-8b", "remat": remat},
            "data": {"source": "text", "path": "x", "seq_len": 4096, "global_batch": rows},
            "mesh": mesh,
        }
    )


def found(job: Job, world: World) -> Bounds:
    best = bounds(job, resolve(job, world, CORPUS))
    assert best is not None
    return best
