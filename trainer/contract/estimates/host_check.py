"""What checks of hosts cost: memory of each device, and share of the time of steps."""

from dataclasses import dataclass

from trainer.contract.config.job import Job
from trainer.contract.estimates.roofline import Bounds
from trainer.contract.planning import accelerators
from trainer.contract.planning.host_check import on_one_host
from trainer.contract.planning.plan import Plan


@dataclass(frozen=True)
class HostCheckCost:
    """The cost of the checks of a job with `integrity`."""

    every_steps: int
    examples: int
    """Examples that each host computes in a check, all hosts the same."""
    bytes_per_device: int
    """Bytes of the host's weights and their gradients on each device, beside the state."""
    step_time_share: float
    """Share of the time of steps, as far as the specifications of the devices are known."""


def host_check_cost(job: Job, plan: Plan, best: Bounds | None) -> HostCheckCost | None:
    """Returns the cost of a job's checks; None if there are none. `best`: bounds of a step.

    A check takes as much time as its examples take in a step, and the transfer of the weights to
    every host if the bandwidth is known. libtpu's detector repeats the computation.
    """
    if job.integrity is None or plan.world.processes == 1:
        return None
    host = on_one_host(plan)
    weights = sum(array.bytes_per_device for array in host.parameters)
    examples, hosts = host.batch.global_batch, plan.world.processes
    times = 2 if job.integrity.tpu_detector and plan.world.platform == "tpu" else 1
    steps = times * examples * hosts / plan.batch.global_batch
    if best is not None:
        steps += _transfer_s(plan, weights) / best.step_s
    every = job.integrity.replay_every
    needed = weights + sum(array.bytes_per_device for array in host.trained)
    return HostCheckCost(every, examples, needed, steps / every)


def _transfer_s(plan: Plan, bytes_per_device: int) -> float:
    """Returns the least seconds in which each host receives all weights."""
    chip, world = accelerators.parse(plan.world.accelerator), plan.world
    if world.platform == "tpu" and chip.ici_bytes_per_s:
        return bytes_per_device / chip.ici_bytes_per_s
    on_host = bytes_per_device * world.devices_per_host
    return on_host / chip.dcn_bytes_per_s if chip.dcn_bytes_per_s else 0.0
