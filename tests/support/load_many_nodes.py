"""Many real agents on few Ray nodes: more hosts than this machine has room for as nodes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from launcher.core.events import Listener
from launcher.gang.agent_calls import end_agents
from launcher.gang.agent_pool import Member
from launcher.gang.connect import connected
from launcher.gang.gang import Gang
from launcher.gang.host_selection import usable_hosts
from launcher.gang.reservation import NODE_LABEL, Reservation
from launcher.gang.spawn import Patience, start_agents
from launcher.providers.ray.host_cluster import HostCluster
from tests.support.worlds import cpu_world
from trainer.contract.protocol.events import WarningEvent

MOST_NODES = 16
"""On one machine. Until all of 64 agents have reported, two cores need 55 s with 16 nodes and 176 s
with 64: a node takes 2 s of a processor to start and an agent as much, more beside many others.
Of memory a node takes 27 MiB and an agent 48 (proportional set sizes; what the machine has left
shrinks by 11 GiB with 64 nodes)."""
PLACED_WITHIN_S = 30.0
PATIENCE = Patience(answer_s=120.0)
"""Its node starts one agent after the other, and all nodes share the machine."""
STUB = Path(__file__).with_name("stub.py")


class Stub:
    """The stub program on every host, with what the launcher would give it."""

    def __init__(self, processes: int, steps: int = 2, step_s: float = 0.1) -> None:
        self._processes, self._words = processes, [str(steps), str(step_s)]

    failure_grace_s = 2.0

    def standby_command(self, process: int, *, check: bool) -> None:
        del process

    def command(self, process: int) -> list[str]:
        del process
        return [sys.executable, "-I", "-S", str(STUB), *self._words]

    def environment(self, process: int) -> dict[str, str]:
        return {
            "SLIPWAY_PROCESS_ID": str(process),
            "SLIPWAY_NUM_PROCESSES": str(self._processes),
        }


def nodes_for(agents: int) -> int:
    """How many nodes that many agents share, each as many."""
    return min(agents, MOST_NODES)


@contextmanager
def crowded(hosts: HostCluster, agents: int, run_dir: Path, listener: Listener) -> Iterator[Gang]:
    """What `gather` does, with several agents on each of `nodes_for(agents)` nodes."""
    with connected(hosts, run_dir, listener):
        reservation = _reserve(hosts, agents)
        seats = dict(enumerate(reservation.seats))
        made = start_agents(seats, hosts, listener.on_status, _warn(listener), PATIENCE)
        try:
            members = [Member(made[process], seat.host) for process, seat in seats.items()]
            yield Gang(members, run_dir, listener)
        finally:
            end_agents(list(made.values()))
            reservation.release()


def _reserve(hosts: HostCluster, agents: int) -> Reservation:
    """As many bundles on every node; Ray would give each process a node of its own."""
    from ray.util.placement_group import placement_group, remove_placement_group

    per_node = agents // nodes_for(agents)
    nodes = sorted(usable_hosts(cpu_world(nodes_for(agents), 1), hosts), key=lambda h: h.number)
    seats = [replace(nodes[n // per_node], number=n) for n in range(agents)]
    bundle = {"CPU": 1 / per_node}
    selectors = [{NODE_LABEL: seat.node_id} for seat in seats]
    group = placement_group([bundle] * agents, strategy="PACK", bundle_label_selector=selectors)
    reservation = Reservation(hosts, group, bundle, seats, lambda: remove_placement_group(group))
    assert reservation.is_placed_within(PLACED_WITHIN_S)
    reservation.check_order()
    return reservation


def _warn(listener: Listener):
    def warn(text: str) -> None:
        listener.on_event(WarningEvent(category="agent", message=text))

    return warn
