"""The plan that a process follows: the launcher's, or its own for this machine."""

from pathlib import Path

import jax

from trainer.contract.config.job import Job
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import Corpus, Plan, World
from trainer.contract.planning.planner import resolve
from trainer.contract.records.teacher import teacher_model
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
    return resolve(job, this_machine(), corpus, custom.parameters, teacher_model)


def this_machine() -> World:
    """Returns a world of one process with the devices that JAX finds on this machine."""
    platform = jax.default_backend()
    assert platform in ("cpu", "gpu", "tpu"), platform
    kind = jax.devices()[0].device_kind
    return World(
        accelerator=accelerators.of_device_kind(platform, kind, jax.local_device_count()),
        platform=platform,
        simulated=False,
        slices=1,
        hosts_per_slice=1,
        devices_per_host=jax.local_device_count(),
        topology=None,
        host_bounds=None,
    )
