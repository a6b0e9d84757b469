"""Compiled programs of hosts with disks of their own: agents of Ray give them to each other."""

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from launcher.core.events import Listener
from launcher.core.results import GangResult
from launcher.gang.agent_calls import Agents
from launcher.gang.agent_pool import AgentPool
from launcher.gang.connect import connected
from launcher.gang.gang import Gang
from launcher.gang.host_program import HostProgram
from launcher.gang.program_archive import ProgramArchive
from launcher.gang.program_sync import ProgramSync
from launcher.host.program_files import ProgramFile
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.gang_programs import Script
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import Event, UnknownEvent, WarningEvent
from trainer.contract.storage.compiled_programs import IN_RUN

COMPILES = """
cache = os.environ["XDG_CACHE_HOME"] + "/slipway/"
names = [f"executables/ab{process}/step-{process}"] + ["compiled/jit_add-1-cache"] * (not process)
for name in names:
    os.makedirs(os.path.dirname(cache + name), exist_ok=True)
    with open(cache + name, "wb") as file:
        file.write(bytes([process]) * 5_000_000)
say(event="compiled", seconds=0.1, from_cache=False)
index = %r
ends_at = time.monotonic() + 120
while not os.path.exists(index) or not all(name in open(index).read() for name in names):
    assert time.monotonic() < ends_at, "the launcher does not have the programs"
    time.sleep(0.05)
"""
LISTS = """
folder = os.environ["XDG_CACHE_HOME"]
found = [os.path.relpath(f"{at}/{n}", folder) for at, _, names in os.walk(folder) for n in names]
say(event="found", files=[name for name in sorted(found) if "folder-id" not in name])
"""
STEPS = [f"slipway/executables/ab{process}/step-{process}" for process in (0, 1)]
CACHED = "slipway/compiled/jit_add-1-cache"
MIB = 1 << 20


class Caches(Script):
    """A script whose processes have cache folders of their own, below a folder."""

    def __init__(self, code: str, folder: Path, *, on_cpu: bool) -> None:
        super().__init__(code)
        self._folder = folder
        self.environment_of_all = {"JAX_PLATFORMS": "cpu" if on_cpu else "tpu,cpu"}

    def environment(self, process: int) -> dict[str, str]:
        own = {"XDG_CACHE_HOME": str(self._folder / str(process))}
        return {**super().environment(process), **own}


class Recorder(Listener):
    """Records what the programs have found, and warnings."""

    def __init__(self) -> None:
        self.found: dict[int, list[str]] = {}
        self.warnings: list[str] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, WarningEvent):
            self.warnings.append(str(event.message))
        elif isinstance(event, UnknownEvent) and event.event == "found":
            self.found[event.process or 0] = event.extra["files"]


@pytest.fixture(scope="module")
def hosts(pod: OwnedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnedCluster]:
    with connected(pod, tmp_path_factory.mktemp("run"), Listener()):
        yield pod


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    monkeypatch.setattr("launcher.gang.program_sync.FIRST_S", 0.1)
    (tmp_path / "run" / "logs").mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def agents(hosts: OwnedCluster, run_dir: Path, pod_world: World) -> Iterator[list[Any]]:
    with AgentPool(hosts, run_dir, Listener()) as agents:
        yield agents.members(pod_world)[0]


def run(agents: list[Any], program: Script, run_dir: Path, recorder: Recorder) -> GangResult:
    return Gang(agents, run_dir, recorder).run(program)


def after_first_attempt(agents: list[Any], run_dir: Path, *, on_cpu: bool) -> None:
    """Runs an attempt on hosts that compile; ends when the launcher has their programs."""
    code = COMPILES % str(run_dir / IN_RUN / "index.json")
    recorder = Recorder()
    program = Caches(code, run_dir / "first", on_cpu=on_cpu)
    assert run(agents, program, run_dir, recorder).ok
    assert recorder.warnings == []


def found_next(agents: list[Any], run_dir: Path, *, on_cpu: bool) -> Recorder:
    """Runs an attempt on hosts with empty disks, and returns what its programs have found."""
    recorder = Recorder()
    program = Caches(LISTS, run_dir / "next", on_cpu=on_cpu)
    assert run(agents, program, run_dir, recorder).ok
    return recorder


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_host_with_an_empty_disk_has_the_programs_of_its_number(
    agents: list[Any], run_dir: Path, on_cpu: bool
) -> None:
    after_first_attempt(agents, run_dir, on_cpu=on_cpu)
    recorder = found_next(agents, run_dir, on_cpu=on_cpu)
    cached = [] if on_cpu else [CACHED]
    assert recorder.found == {0: [CACHED, STEPS[0]], 1: [*cached, STEPS[1]]}
    assert recorder.warnings == []
    assert (run_dir / "next" / "1" / STEPS[1]).read_bytes() == bytes([1]) * 5_000_000


def test_one_that_is_damaged_on_the_way_is_refused_with_one_warning(
    agents: list[Any], run_dir: Path
) -> None:
    after_first_attempt(agents, run_dir, on_cpu=True)
    for path in (run_dir / IN_RUN).glob("[0-9a-f]*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    recorder = found_next(agents, run_dir, on_cpu=True)
    assert recorder.found == {0: [], 1: []}
    (warning,) = recorder.warnings
    assert "its SHA-256 is another one. A host that lacks them compiles them" in warning


def test_a_host_whose_disk_takes_nothing_starts_with_one_warning(
    agents: list[Any], run_dir: Path
) -> None:
    after_first_attempt(agents, run_dir, on_cpu=True)
    (run_dir / "next" / "1").mkdir(parents=True)
    (run_dir / "next" / "1" / "slipway").write_text("no folder")
    recorder = found_next(agents, run_dir, on_cpu=True)
    assert recorder.found[0] == [CACHED, STEPS[0]]
    (warning,) = recorder.warnings
    assert "host-0001 are not shared" in warning and "cannot be written" in warning


def test_hosts_that_share_this_machines_folder_give_nothing(
    agents: list[Any], run_dir: Path
) -> None:
    wrote = COMPILES.partition("index =")[0] + "time.sleep(3)"
    program = Script(wrote)
    program.environment_of_all = {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]}
    assert run(agents, program, run_dir, Recorder()).ok
    assert not (run_dir / IN_RUN).exists()


def started(agents: list[Any], run_dir: Path, sizes: list[int]) -> list[HostProgram]:
    """Starts programs that have used a file of some MiB each, and sleep."""
    programs = []
    for process, (agent, size) in enumerate(zip(agents, sizes, strict=True)):
        cache = run_dir / "first" / str(process)
        program = HostProgram(
            ["sleep", "60"],
            {"SLIPWAY_PROCESS_ID": str(process), "XDG_CACHE_HOME": str(cache)},
            str(run_dir / f"{process}.log"), str(run_dir), 1.0, [],
        )  # fmt: skip
        ray.get(agent.start.remote(program))
        path = cache / STEPS[process]
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes([process]) * size * MIB)
        programs.append(program)
    return programs


def giving(sync: ProgramSync) -> set[int]:
    """The processes whose agents are asked for something now."""
    return {task.process for task in sync._calls.values()}


def pid_of(agent: Any) -> int:
    return ray.get(agent.__ray_call__.remote(lambda _: os.getpid()))


def test_host_that_dies_while_it_gives_costs_the_others_nothing(
    agents: list[Any], run_dir: Path
) -> None:
    both = [member.agent for member in agents]
    started(both, run_dir, [256, 1])
    archive, warnings = ProgramArchive(run_dir, 10**10), list[str]()
    sync = ProgramSync(Agents(both), archive, warnings.append)
    for process in (0, 1):
        sync.has_compiled(process)
    ends_at = time.monotonic() + 60
    while not archive.needed(1, on_cpu=True) or 0 not in giving(sync):
        assert time.monotonic() < ends_at
        sync.poll()
    os.kill(pid_of(both[0]), signal.SIGKILL)
    for _ in range(100):
        sync.poll()
    assert archive.needed(0, on_cpu=True) == []
    assert [file.size for file in archive.needed(1, on_cpu=True)] == [MIB]
    assert warnings == []


def receiving(
    agents: list[Any], run_dir: Path, warnings: list[str]
) -> tuple[ProgramSync, dict[int, HostProgram]]:
    """Returns an exchange that has a large file for host 1, and the program of that host."""
    programs = started(agents, run_dir, [1, 1])
    archive, data = ProgramArchive(run_dir, 10**10), bytes(64 * MIB)
    file = ProgramFile("executables/ab1/large-1", len(data), hashlib.sha256(data).hexdigest())
    assert archive.add(file, data) == ""
    archive.record(1, [file])
    environment = {**programs[1].environment, "XDG_CACHE_HOME": str(run_dir / "second")}
    sync = ProgramSync(Agents(agents), archive, warnings.append)
    return sync, {1: replace(programs[1], environment=environment)}


def test_host_that_dies_while_it_receives_has_no_part_of_a_file(
    agents: list[Any], run_dir: Path
) -> None:
    both, warnings = [member.agent for member in agents], list[str]()
    sync, programs = receiving(both, run_dir, warnings)
    sync.send(programs)
    for _ in range(3):
        sync._continue(5.0)
    os.kill(pid_of(both[1]), signal.SIGKILL)
    sync.finish()
    assert [path for path in (run_dir / "second").rglob("*") if path.is_file()] == []
    (warning,) = warnings
    assert "host-0001 are not shared: its agent has failed" in warning


@pytest.mark.parametrize("limit", ["SEND_S", "ANSWER_S"])
def test_one_that_answers_nothing_is_given_up_with_one_warning(
    agents: list[Any], run_dir: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"launcher.gang.program_sync.{limit}", 1.0)
    both, warnings = [member.agent for member in agents], list[str]()
    sync, programs = receiving(both, run_dir, warnings)
    pid = pid_of(both[1])
    os.kill(pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        if limit == "SEND_S":
            sync.send(programs)
            sync.finish()
        else:
            sync.has_compiled(1)
            while not warnings:
                sync.poll()
        assert time.monotonic() - begin < 15
    finally:
        os.kill(pid, signal.SIGCONT)
    (warning,) = warnings
    assert "host-0001 are not shared: " in warning and "within 1 s" in warning
