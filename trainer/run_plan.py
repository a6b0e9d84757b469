"""The plan that a process follows: the launcher's, or its own for this machine."""

from pathlib import Path

import jax

from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Corpus, Plan, World
from trainer.contract.planning.planner import resolve
from trainer.distributed.process_env import Environment
from trainer.model import custom


def planned(job: Job, environment: Environment, run_dir: Path) -> Plan:
    """Returns the plan in the attempt's file; without a launcher, one for this machine's devices.

    Raises FileNotFoundError when several processes have no plan, PlanError when the job does not
    fit this machine.
    """
    path = run_dir / "plans" / f"{environment.attempt:04d}.json"
    if environment.processes > 1 or path.exists():
        return Plan.model_validate_json(path.read_text(encoding="utf-8"))
    corpus = Corpus(source=job.data.source, sha256=None)
    return resolve(job, this_machine(), corpus, custom.parameters)


def this_machine() -> World:
    """Returns a world of one process with the devices that JAX finds on this machine."""
    platform = jax.default_backend()
    assert platform in ("cpu", "gpu", "tpu"), platform
    return World(
        accelerator=_accelerator(platform),
        platform=platform,
        simulated=False,
        slices=1,
        hosts_per_slice=1,
        devices_per_host=jax.local_device_count(),
        topology=None,
        host_bounds=None,
    )


def _accelerator(platform: str) -> str:
    """Returns a facts-table name if the device kind gives one: "NVIDIA H200" is h200-1."""
    kind = jax.devices()[0].device_kind.lower()
    parts = kind.replace("nvidia", "").split()
    return platform if platform == "cpu" or not parts else f"{parts[0]}-{jax.local_device_count()}"
