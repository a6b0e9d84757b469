"""Requirements on the hosts of a cluster that is not Slipway's own, checked before agents start."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.core.errors import HostError
from launcher.gang.reservation import Seat
from launcher.host import environment_check
from launcher.providers.ray.client import first_line
from trainer.contract.protocol.process_names import host_name

TIMEOUT_S = 60.0
"""Seconds for Ray to start a process on every host, and for that process to check the disk."""
CODE = Path(__file__).parents[1]
REMEDY = (
    "Every host needs the launcher's Python with Slipway, and the folder that `launch` is started "
    "in, at the same paths: use a shared home or one image"
)


def check_equipment(seats: Mapping[int, Seat]) -> None:
    """Raises HostError with every host that lacks something or does not answer.

    `seats`: those of the processes whose hosts are checked.
    """
    import ray
    from ray import cloudpickle
    from ray.exceptions import RayError

    arguments = (sys.executable, str(CODE), str(Path.cwd()))
    cloudpickle.register_pickle_by_value(
        environment_check
    )  # the host may have no Slipway to import
    try:
        calls = {_check_task(seat).remote(*arguments): p for p, seat in seats.items()}
    finally:
        cloudpickle.unregister_pickle_by_value(environment_check)
    _, late = ray.wait(list(calls), num_returns=len(calls), timeout=TIMEOUT_S)
    problems = []
    for call, process in calls.items():
        try:
            lacks = [f"no response within {TIMEOUT_S:.0f} s"] if call in late else ray.get(call)
        except RayError as error:
            lacks = [first_line(error)]
        if lacks:
            address = seats[process].host.address
            problems.append(f"{host_name(process)} ({address}): {', '.join(lacks)}")
    for call in late:
        ray.cancel(call, force=True)
    if problems:
        raise HostError(f"{'; '.join(problems)}. {REMEDY}")


def _check_task(seat: Seat) -> Any:
    """Returns a task for the host of a seat, which runs within the reservation."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return ray.remote(environment_check.lacking).options(
        num_cpus=0,
        max_retries=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            seat.placement_group, placement_group_bundle_index=seat.bundle_index
        ),
    )
