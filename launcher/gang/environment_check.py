"""Requirements on the hosts of a cluster that is not Slipway's own, checked before agents start."""

import sys
from pathlib import Path
from typing import Any

from launcher.core.errors import HostError
from launcher.core.formatting import host_name
from launcher.gang.reservation import Reservation
from launcher.host import environment_check
from launcher.providers.ray.client import first_line

TIMEOUT_S = 60.0
"""Seconds for Ray to start a process on every host, and for that process to check the disk."""
CODE = Path(__file__).parents[1]
REMEDY = (
    "Every host needs the launcher's Python with Slipway, and the folder that `launch` is started "
    "in, at the same paths: use a shared home or one image"
)


def check_equipment(reservation: Reservation) -> None:
    """Raises HostError with every host that lacks something or does not answer."""
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError

    arguments = (sys.executable, str(CODE), str(Path.cwd()))
    cloudpickle.register_pickle_by_value(
        environment_check
    )  # the host may have no Slipway to import
    try:
        calls = [
            _check_task(reservation, p).remote(*arguments) for p in range(len(reservation.hosts))
        ]
    finally:
        cloudpickle.unregister_pickle_by_value(environment_check)
    _, late = ray.wait(calls, num_returns=len(calls), timeout=TIMEOUT_S)
    problems = []
    for process, call in enumerate(calls):
        try:
            lacks = [f"no response within {TIMEOUT_S:.0f} s"] if call in late else ray.get(call)
        except RayError as error:
            lacks = [first_line(error)]
        if lacks:
            address = reservation.hosts[process].address
            problems.append(f"{host_name(process)} ({address}): {', '.join(lacks)}")
    for call in late:
        ray.cancel(call, force=True)
    if problems:
        raise HostError(f"{'; '.join(problems)}. {REMEDY}")


def _check_task(reservation: Reservation, process: int) -> Any:
    """Returns a task for the host of `process`, which runs within the reservation."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return ray.remote(environment_check.lacking).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            reservation.placement_group, placement_group_bundle_index=process
        ),
    )
