"""Whether the checks of hosts that a job asks for fit its devices, and what they can find."""

from collections.abc import Callable, Iterator

from trainer.contract.config.job import Job
from trainer.contract.errors import Problem
from trainer.contract.estimates.host_check import HostCheckCost
from trainer.contract.planning.plan import Plan

KEY = "integrity.replay_every"


def problem(
    locate: Callable[[str, str], Problem], cost: HostCheckCost | None, state: int, hbm: int | None
) -> Problem | None:
    """Returns the problem of checks that do not fit; `state` and `hbm` are bytes per device."""
    if cost is None or hbm is None or state + cost.bytes_per_device <= hbm:
        return None
    needed, left = cost.bytes_per_device / 2**30, max(0, hbm - state) / 2**30
    return locate(
        KEY,
        f"a check needs the whole model and its gradients on the devices of each host: "
        f"{needed:.1f} GiB per device, found {left:.1f} GiB beside the state. Remove `integrity`, "
        "or use hosts with more or larger devices; `launch audit` works with any model",
    )


def warnings(job: Job, plan: Plan) -> Iterator[str]:
    """Yields what checks cannot find on this number of hosts."""
    if job.integrity is None:
        return
    if plan.world.processes == 1:
        yield f"{KEY} has no effect on one host: there is no other one to compare it with"
    if plan.world.processes == 2:
        yield (
            f"{KEY}: of two hosts, one that computes wrong in the same way each time cannot be "
            "named, and the run then ends. A third host would decide"
        )
