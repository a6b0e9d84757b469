"""The gang on a simulated pod of two hosts, with small programs in place of the trainer."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.core.events import Listener
from launcher.gang.agent_calls import GangError
from launcher.gang.agent_ends import explain
from launcher.gang.connect import gather
from launcher.gang.gang import Gang
from launcher.gang.host_checks import CheckError
from launcher.gang.monitor import GangMonitor
from launcher.host.process import REAPER_KILLED
from launcher.host.process_tree import start_time
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.gang_programs import Preparing, Script
from tests.support.processes import wait_until
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import Event
from trainer.contract.protocol.wire import to_wire


class Seen(Listener):
    """What a gang forwarded; events as the fields of their lines."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.lines: list[tuple[int, str]] = []
        self.react: Callable[[Event], None] = lambda event: None

    def on_event(self, event: Event) -> None:
        self.events.append(to_wire(event))
        self.react(event)

    def on_line(self, process: int, line: str) -> None:
        self.lines.append((process, line))


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def shared(pod: OwnedCluster, pod_world: World, folder: Path, seen: Seen) -> Iterator[Gang]:
    with gather(pod, pod_world, folder, seen) as crew:
        yield crew


@pytest.fixture
def crew(shared: Gang, seen: Seen) -> Gang:
    seen.events.clear()
    seen.lines.clear()
    return shared


def test_processes_are_ordered_by_worker(crew: Gang, seen: Seen) -> None:
    outcome = crew.run(Script("say(event='here', worker=os.environ['TPU_WORKER_ID'])"))
    assert outcome.ok
    assert {e["process"]: e["worker"] for e in seen.events} == {0: "0", 1: "1"}


def test_all_processes_get_the_address_of_the_first_host(crew: Gang, seen: Seen) -> None:
    crew.run(Script("say(event='here', address=os.environ['JAX_COORDINATOR_ADDRESS'])"))
    first, second = (event["address"] for event in seen.events)
    assert first == second
    assert first.startswith("127.")


def test_the_coordinator_listens_at_the_address_that_the_hosts_use_alone(
    crew: Gang, seen: Seen
) -> None:
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS")
    crew.run(Script(f"say(event='here', addresses=[os.environ[name] for name in {names}])"))
    address, bound = seen.events[0]["addresses"]
    assert bound == address


BEHIND_A_PROXY = """
for name in ("http_proxy", "https_proxy", "grpc_proxy"):
    os.environ.setdefault(name, "http://127.0.0.1:9")
import jax
jax.distributed.initialize(num_processes=2, process_id=process, initialization_timeout=30)
"""


def test_a_proxy_that_answers_nothing_does_not_come_between_jax_processes(crew: Gang) -> None:
    outcome = crew.run(Script(BEHIND_A_PROXY))
    assert outcome.ok, outcome.tail


def test_programs_see_nothing_of_ray(crew: Gang, seen: Seen) -> None:
    code = "say(event='e', names=[n for n in os.environ if n.startswith(('RAY_', 'OMP_'))])"
    crew.run(Script(code))
    assert [event["names"] for event in seen.events] == [[], []]


def test_programs_have_the_priority_of_what_started_them(crew: Gang, seen: Seen) -> None:
    crew.run(Script("say(event='here', nice=os.nice(0))"))
    assert [event["nice"] for event in seen.events] == [os.nice(0)] * 2


def test_output_goes_to_a_log_per_host_and_to_the_caller(
    crew: Gang, seen: Seen, folder: Path
) -> None:
    crew.run(Script("print('I am', process)"))
    assert sorted(seen.lines) == [(0, "I am 0"), (1, "I am 1")]
    assert (folder / "logs" / "host-0001.log").read_text().endswith("I am 1\n")


def test_when_a_host_fails_the_others_are_ended_and_it_is_named(crew: Gang) -> None:
    outcome = crew.run(Script("print('bye') if process else time.sleep(999); sys.exit(7)"))
    assert outcome.failed_process == 1
    assert outcome.code == 7
    assert outcome.tail == ["bye"]
    assert outcome.exits[0].stopped


def test_a_host_whose_reaper_is_killed_has_failed_for_that_reason(crew: Gang) -> None:
    outcome = crew.run(
        Script("print('hello', flush=True); process or os.kill(os.getppid(), 9); time.sleep(999)")
    )
    assert outcome.reason == f"host-0000 failed: {REAPER_KILLED}"


@pytest.mark.parametrize(
    ("events", "meaning"),
    [
        (["started"], "initialization failed, see above"),
        (["started", "initialized", "step"], "an abort in native code, see above"),
        ([], "an abort in native code, see above"),
    ],
    ids=["before", "after", "unknown"],
)
def test_an_abort_is_a_failed_initialization_only_before_its_end(
    crew: Gang, events: list[str], meaning: str
) -> None:
    outcome = crew.run(Script(f"[say(event=one) for one in {events}]; os.abort()"))
    assert outcome.reason.endswith(f"was killed by SIGABRT ({meaning})")


class Asking(GangMonitor):
    """Wants all hosts to stop as soon as they are up."""

    def __init__(self, seen: Seen, grace_s: float) -> None:
        self.grace_s = grace_s
        self._seen = seen

    def should_stop(self) -> bool:
        return sum(event["event"] == "up" for event in self._seen.events) == 2


class Patient(GangMonitor):
    grace_s = 30.0


SAVES = """
import signal
def save(number, frame):
    say(event="saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
say(event="up")
"""


def test_all_hosts_are_stopped_in_order_when_that_is_asked_for(crew: Gang, seen: Seen) -> None:
    outcome = crew.run(Script(SAVES + "time.sleep(999)"), None, Asking(seen, grace_s=30.0))
    assert outcome.stopped
    assert {e["process"] for e in seen.events if e["event"] == "saved"} == {0, 1}
    assert [ended.code for ended in outcome.exits.values()] == [75, 75]


def test_a_host_that_stops_by_itself_stops_the_others(crew: Gang, tmp_path: Path) -> None:
    """Once the other one is up, and so can stop in order."""
    code = f"""
up = {str(tmp_path / "up")!r}
if process:
    open(up, "w").close()
    time.sleep(999)
while not os.path.exists(up):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGTERM)
"""
    outcome = crew.run(Script(SAVES + code), None, Patient())
    assert outcome.stopped
    assert outcome.cut_off == ""


def test_a_host_that_fails_in_a_stop_ends_the_others_at_once(crew: Gang, seen: Seen) -> None:
    hangs = SAVES.replace('say(event="saved")', "sys.exit(1) if process else time.sleep(999)")
    code = hangs + "time.sleep(999)"
    outcome = crew.run(Script(code), None, Asking(seen, grace_s=900.0))
    assert outcome.stopped
    assert "host-0001 exited with code 1" in outcome.cut_off


def test_killed_program_is_reported_with_signal(crew: Gang) -> None:
    outcome = crew.run(Script("os.kill(os.getpid(), 9 * process)"))
    assert "host-0001 was killed by SIGKILL" in outcome.reason


def test_a_taken_coordinator_port_is_replaced(crew: Gang, seen: Seen, folder: Path) -> None:
    """The first start finds the port taken in the last moment; the second gets another one."""
    once = folder / "once"
    code = f"""
port = int(os.environ["JAX_COORDINATOR_ADDRESS"].rpartition(":")[2])
say(event="here", port=port)
if process == 0 and not os.path.exists({str(once)!r}):
    open({str(once)!r}, "w").close()
    say(event="warning", category="port_taken", message="taken")
    sys.exit(1)
"""
    assert crew.run(Script(code)).ok
    ports = [event["port"] for event in seen.events if event["event"] == "here"]
    assert len(set(ports)) == 2


def test_a_wanted_coordinator_port_that_is_taken_is_not_used(crew: Gang, seen: Seen) -> None:
    code = "say(event='here', address=os.environ['JAX_COORDINATOR_ADDRESS'])"
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert crew.run(Script(code), coordinator_port=port).ok
    assert not seen.events[0]["address"].endswith(f":{port}")


CHECK = "say(event='checked', versions={'jax': '1'}, host_name=str(os.getpid()))"


def test_the_processes_that_checked_like_hosts_run_the_program(crew: Gang, seen: Seen) -> None:
    program = Script("say(event='here', pid=str(os.getpid()))", CHECK)
    checked = {process: event.host_name for process, event in crew.check(program).items()}
    assert sorted(checked) == [0, 1]
    assert crew.run(program).ok
    here = [event for event in seen.events if event["event"] == "here"]
    assert {event["process"]: event["pid"] for event in here} == checked


def test_they_run_it_in_the_environment_of_the_start(crew: Gang, seen: Seen) -> None:
    names = ("JAX_COORDINATOR_ADDRESS", "ATTEMPT")
    program = Script(f"say(event='here', now=[os.environ[name] for name in {names}])", CHECK)
    crew.check(program)
    program.environment_of_all = {"ATTEMPT": "2"}
    assert crew.run(program).ok
    (first, attempt), (second, _) = [e["now"] for e in seen.events if e["event"] == "here"]
    assert first == second and attempt == "2"


def test_a_process_that_died_before_the_start_is_a_failure(crew: Gang) -> None:
    program = Script("", CHECK)
    os.kill(int(crew.check(program)[0].host_name or 0), signal.SIGKILL)
    assert "host-0000 was killed by SIGKILL" in crew.run(program).reason


@pytest.fixture
def prepared(crew: Gang, seen: Seen, tmp_path: Path) -> tuple[Script, list[str]]:
    """A program whose standby processes wait for its second start, and their ids by process."""
    paths = [tmp_path / f"standby-{process}" for process in range(2)]
    wait = f"while not all(map(os.path.exists, {[str(path) for path in paths]})): time.sleep(0.02)"
    standby = (
        "print('from before the start', flush=True); say(event='early')\n"
        f"path = {str(tmp_path / 'standby-')!r} + str(process)\n"
        "open(path + '.new', 'w').write(str(os.getpid())); os.rename(path + '.new', path)"
    )
    program = Script(f"{wait}\nsay(event='here', pid=str(os.getpid()))", standby=standby)
    assert crew.run(program, monitor=Preparing()).ok
    seen.events.clear()
    seen.lines.clear()
    return program, [path.read_text() for path in paths]


def test_standby_processes_run_the_next_attempt(
    crew: Gang, seen: Seen, prepared: tuple[Script, list[str]]
) -> None:
    program, waiting = prepared
    assert crew.run(program).ok
    assert {e["process"]: e["pid"] for e in seen.events} == dict(enumerate(waiting))
    assert sorted(seen.lines) == [(process, "from before the start") for process in range(2)]


def test_a_standby_process_that_has_died_is_replaced(
    crew: Gang, seen: Seen, prepared: tuple[Script, list[str]]
) -> None:
    program, waiting = prepared
    dead = psutil.Process(int(waiting[0]))
    dead.kill()
    dead.wait(10.0)
    assert crew.run(program).ok
    pids = {e["process"]: e["pid"] for e in seen.events}
    assert pids[0] != waiting[0] and pids[1] == waiting[1]


def test_the_host_that_differs_is_named(crew: Gang) -> None:
    check = "say(event='checked', versions={'jax': ['0.10.2', '9.9.9'][process]})"
    with pytest.raises(GangError, match=r"versions\.jax differs: host-0001 has 9\.9\.9"):
        crew.check(Script("", check=check))


def test_a_host_that_cannot_serve_the_job_says_why(crew: Gang) -> None:
    check = "process and (say(event='error', message='no such file: /data'), sys.exit(65))"
    with pytest.raises(CheckError, match="host-0001: no such file: /data") as error:
        crew.check(Script("", check=check))
    assert error.value.outcome.code == 65


def test_a_flood_of_events_arrives_in_order(crew: Gang, seen: Seen) -> None:
    code = "[say(event='step', step=i) for i in range(2000)]"
    assert crew.run(Script(code)).ok
    for process in (0, 1):
        steps = [e["step"] for e in seen.events if e["process"] == process]
        assert steps == list(range(2000))


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
