"""The agents that wait on a warm cluster: who gets them, and when they end."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from launcher.core.events import Listener
from launcher.gang import waiting_agents
from launcher.gang.agent_pool import AgentPool
from launcher.gang.borrowed_agents import NAMESPACE, SOCKET, BorrowedAgents
from launcher.gang.connect import connected
from launcher.providers.local import provider
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.processes import wait_until
from tests.support.worlds import cpu_world

WORLD = cpu_world(2, 1)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnedCluster]:
    """A cluster with waiting agents, to which this process is connected."""
    with provider.start(WORLD) as hosts:
        assert hosts.folder is not None
        waiting_agents.keep_waiting(hosts)
        wait_until((hosts.folder / SOCKET).exists, 60.0)
        with connected(hosts, tmp_path_factory.mktemp("run"), Listener()):
            yield hosts


@pytest.fixture
def loan(hosts: OwnedCluster) -> Iterator[BorrowedAgents]:
    with borrowed(hosts) as loan:
        yield loan


def borrowed(hosts: OwnedCluster) -> BorrowedAgents:
    """Returns a loan of agents: the keeper may still be ending an earlier one."""
    loans = [BorrowedAgents(hosts.folder)]

    def is_lent() -> bool:
        if not loans[-1].names:
            with loans.pop():
                loans.append(BorrowedAgents(hosts.folder))
        return bool(loans[-1].names)

    wait_until(is_lent, 60.0)
    return loans[-1]


def nodes() -> list[str]:
    return [node["NodeID"] for node in ray.nodes() if node["Alive"]]


def has_ended(agent: Any) -> bool:
    try:
        ray.get(agent.address.remote())
    except RayActorError:
        return True
    return False


def agents_of(loan: BorrowedAgents, hosts: OwnedCluster, run_dir: Path) -> dict[str, Any]:
    """Returns the agents that a run gets, by the id of the node, and ends them."""
    with AgentPool(hosts, run_dir, Listener(), waiting=loan) as pool:
        members, _ = pool.members(WORLD)
        return {member.host.node_id: member.agent for member in members}


def ids(agents: dict[str, Any]) -> dict[str, str]:
    return {node: agent._actor_id.hex() for node, agent in agents.items()}


def test_a_run_gets_them_and_they_end_with_it(
    loan: BorrowedAgents, hosts: OwnedCluster, tmp_path: Path
) -> None:
    waiting = {node: ray.get_actor(name, NAMESPACE) for node, name in loan.names.items()}
    assert len(waiting) == WORLD.processes
    agents = agents_of(loan, hosts, tmp_path)
    assert ids(agents) == ids(waiting)
    wait_until(lambda: all(map(has_ended, agents.values())), 10.0)


@pytest.mark.parametrize("count", [1, 2])
def test_one_that_has_ended_is_replaced_by_a_new_one(
    loan: BorrowedAgents, hosts: OwnedCluster, tmp_path: Path, count: int
) -> None:
    waiting = {node: ray.get_actor(name, NAMESPACE) for node, name in loan.names.items()}
    for node in sorted(waiting)[:count]:
        ray.kill(waiting[node])
        wait_until(lambda node=node: has_ended(waiting[node]), 10.0)
    agents = ids(agents_of(loan, hosts, tmp_path))
    assert agents.keys() == waiting.keys()
    kept = [node for node in sorted(agents) if agents[node] == ids(waiting)[node]]
    assert kept == sorted(waiting)[count:]


def test_only_one_run_at_a_time_gets_any(loan: BorrowedAgents, hosts: OwnedCluster) -> None:
    with BorrowedAgents(hosts.folder) as second:
        assert not second.names


def test_they_end_with_the_loan_when_nothing_else_ends_them(hosts: OwnedCluster) -> None:
    with borrowed(hosts) as loan:
        taken = loan.take(nodes(), hosts)
    assert taken
    wait_until(lambda: all(map(has_ended, taken.values())), 10.0)
    with borrowed(hosts) as next_loan:
        assert not set(ids(next_loan.take(nodes(), hosts)).values()) & set(ids(taken).values())


def test_one_whose_code_has_changed_is_not_used(loan: BorrowedAgents, hosts: OwnedCluster) -> None:
    waiting = {node: ray.get_actor(name, NAMESPACE) for node, name in loan.names.items()}
    stale, current = sorted(waiting)

    def forget(agent: Any) -> None:
        agent._code._files = {Path("of an earlier version"): (0, 0, 0)}

    ray.get(waiting[stale].__ray_call__.remote(forget))
    assert loan.take(nodes(), hosts).keys() == {current}
    wait_until(lambda: has_ended(waiting[stale]), 10.0)


def test_a_cluster_without_any_lends_none(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with BorrowedAgents(folder) as loan:
            assert not loan.names
