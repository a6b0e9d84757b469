"""The agents of a gang and their Ray nodes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launcher.gang.agent_ends import explain
from launcher.gang.gang import Gang
from launcher.host.process_tree import start_time
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.gang_programs import Script, Seen
from tests.support.processes import wait_until
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import Event

STRANGER = """
import sys
from launcher.providers.ray.probe import query
print(len(query(sys.argv[1]).nodes), "nodes")
"""


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RAY_AUTH_MODE": "disabled"}, "Authentication token is missing or incorrect"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}, "InvalidAuthToken"),
    ],
    ids=["no token", "another token"],
)
def test_a_stranger_without_the_token_is_refused_by_a_cluster_of_ours(
    pod: OwnedCluster, variables: dict[str, str], said: str
) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", STRANGER, pod.address]
    asked = subprocess.run(command, env={**own, **variables}, capture_output=True, text=True)
    assert asked.returncode != 0, asked.stdout
    assert said in asked.stderr


SECOND = """
import json, sys
from pathlib import Path
from launcher.gang.connect import gather
from launcher.core.events import Listener
from launcher.core.errors import HostError
from launcher.providers.ray.host_cluster import WarmCluster
from trainer.contract.planning.plan import World
address, ip, token, world = sys.argv[1:]
hosts = WarmCluster(address, ip, Path(token))
try:
    world = World.model_validate_json(world)
    with gather(hosts, world, Path("/nowhere"), reserve_timeout_s=2.0):
        pass
except HostError as error:
    sys.exit(str(error))
"""


def test_hosts_in_use_are_refused_to_a_second_run(
    crew: Gang, pod: OwnedCluster, pod_world: World, tmp_path: Path
) -> None:
    world = pod_world.model_dump_json()
    arguments = [pod.address, pod.driver_ip, str(pod.token_path), world]
    command = [sys.executable, "-c", SECOND, *arguments]
    second = subprocess.run(command, capture_output=True, text=True)
    assert second.returncode == 1
    assert "those of slice-a are in use by another run" in second.stderr


def agent_of(pod: OwnedCluster, worker: int) -> int:
    """The process id of a host's agent, by what its environment says."""
    marks = {f"RAY_AUTH_TOKEN_PATH={pod.token_path}".encode(), f"TPU_WORKER_ID={worker}".encode()}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            is_agent = (entry / "cmdline").read_bytes().startswith(b"ray::Agent")
            if is_agent and marks <= set((entry / "environ").read_bytes().split(b"\0")):
                return int(entry.name)
        except OSError:
            continue
    raise LookupError(f"no agent of worker {worker}")


def test_the_kernel_ends_programs_before_agents_when_memory_runs_out(
    crew: Gang, seen: Seen, pod: OwnedCluster
) -> None:
    crew.run(Script("say(event='here', score=open('/proc/self/oom_score_adj').read())"))
    assert [event["score"] for event in seen.events] == ["1000\n"] * 2
    agents = [Path(f"/proc/{agent_of(pod, worker)}/oom_score_adj") for worker in (0, 1)]
    assert [int(path.read_text()) < 1000 for path in agents] == [True] * 2


def test_rays_memory_monitor_is_off_on_nodes_of_ours(crew: Gang, pod: OwnedCluster) -> None:
    environment = Path(f"/proc/{agent_of(pod, 0)}/environ").read_bytes().split(b"\0")
    assert b"RAY_memory_monitor_refresh_ms=0" in environment


def test_a_host_runs_a_raylet_with_idle_agents_and_the_agent_of_the_run(
    crew: Gang, pod: OwnedCluster
) -> None:
    raylet = psutil.Process(agent_of(pod, 0)).parent()
    assert raylet and raylet.name() == "raylet"
    commands = [" ".join(child.cmdline()) for child in raylet.children()]
    idle = [command for command in commands if "idle_agent.py" in command]
    assert len(idle) == 2
    assert all(command.startswith("ray::Agent") for command in commands if command not in idle)


def test_agent_error_is_reported_in_one_line(crew: Gang) -> None:
    import ray
    from ray.exceptions import RayTaskError

    with pytest.raises(RayTaskError) as raised:
        ray.get(crew._agents[0].receive.remote("/x", 3, [], []))
    end = explain(raised.value, time.monotonic())
    assert end.host_lives
    assert re.fullmatch(
        r"Slipway's own agent failed: AttributeError: 'int' object has no attribute "
        r"'items' \(run_dir_mirror\.py:\d+ in __init__\)",
        end.why,
    )


def test_when_an_agent_is_killed_its_program_ends_with_it(
    crew: Gang, seen: Seen, pod: OwnedCluster
) -> None:
    """The last test of this file: the gang has lost a host after it."""

    def kill_agent(event: Event) -> None:
        if event.process == 1:
            os.kill(agent_of(pod, 1), signal.SIGKILL)

    seen.react = kill_agent
    outcome = crew.run(Script("say(event='here', pid=os.getpid()); time.sleep(999)"))
    killed = "its agent ended, and the program with it, although its Ray node is alive"
    assert outcome.reason == f"host-0001 failed: {killed}"
    programs = [event["pid"] for event in seen.events]
    wait_until(lambda: not any(start_time(pid) for pid in programs), 30.0)
