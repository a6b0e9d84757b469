"""The agents of a run: which of them the next gang has."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.gang.agent_pool import AgentPool, Member
from launcher.gang.connect import connected
from launcher.gang.gang import Gang
from launcher.gang.reservation import reserve
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.gang_programs import Preparing, Script
from trainer.contract.planning.plan import World


@pytest.fixture(scope="module")
def hosts(pod: OwnedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnedCluster]:
    with connected(pod, tmp_path_factory.mktemp("run"), Listener()):
        yield pod


@pytest.fixture
def agents(hosts: OwnedCluster, tmp_path: Path) -> Iterator[AgentPool]:
    with AgentPool(hosts, tmp_path, Listener()) as agents:
        yield agents


def members_of(agents: AgentPool, world: World) -> list[Member]:
    members, spares = agents.members(world)
    assert not spares
    return members


def ids(members: list[Member]) -> list[str]:
    return [member.agent._actor_id.hex() for member in members]


def test_agents_that_answer_serve_the_next_gang(agents: AgentPool, pod_world: World) -> None:
    assert ids(members_of(agents, pod_world)) == ids(members_of(agents, pod_world))


def test_one_that_has_ended_is_replaced_on_its_host_and_the_other_stays(
    agents: AgentPool, pod_world: World
) -> None:
    before = members_of(agents, pod_world)
    ray.kill(before[1].agent)
    after = members_of(agents, pod_world)
    assert ids(after)[0] == ids(before)[0]
    assert ids(after)[1] != ids(before)[1]
    assert [member.host.node_id for member in after] == [m.host.node_id for m in before]


def test_the_standby_process_beside_a_lost_agent_runs_the_next_attempt(
    agents: AgentPool, pod_world: World, tmp_path: Path
) -> None:
    paths = [tmp_path / f"standby-{process}" for process in range(2)]
    standby = (
        f"path = {str(tmp_path / 'standby-')!r} + str(process)\n"
        "open(path + '.new', 'w').write(str(os.getpid())); os.rename(path + '.new', path)"
    )
    wait = f"while not all(map(os.path.exists, {[str(path) for path in paths]})): time.sleep(0.02)"
    ran = tmp_path / "ran-"
    code = f"{wait}\nopen({str(ran)!r} + str(process), 'w').write(str(os.getpid()))"
    program = Script(code, standby=standby)
    first = members_of(agents, pod_world)
    assert Gang(first, tmp_path, Listener()).run(program, monitor=Preparing()).ok
    prepared = [path.read_text() for path in paths]
    agents.drop([first[1]])
    assert Gang(members_of(agents, pod_world), tmp_path, Listener()).run(program).ok
    pids = [Path(f"{ran}{process}").read_text() for process in range(2)]
    assert pids[0] == prepared[0] and pids[1] != prepared[1]


def test_the_hosts_are_reserved_until_it_is_closed(
    agents: AgentPool, hosts: OwnedCluster, pod_world: World
) -> None:
    agents.drop(members_of(agents, pod_world))
    with pytest.raises(HostError, match="in use by another run"):
        reserve(pod_world, hosts, 0.0)
    agents.close()
    _, added = reserve(pod_world, hosts, 20.0)
    assert added is not None
    added.release()
