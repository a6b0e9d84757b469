"""What is wrong with hosts is named, all at once, with its remedy, before a program starts."""

import getpass
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cluster.schema import find_cluster
from launcher.core.ipv4 import NEEDED
from launcher.gang.preflight import HostProblem, Needs, Seen, judge
from launcher.host import preflight
from launcher.host.preflight import Holder, HostReport
from tests.support.jobs import world_of
from trainer.contract.estimates.host_memory import AGENTS_BYTES, Phase
from trainer.contract.planning.plan import World

GOOD = HostReport(
    address="10.0.0.1",
    machine="first",
    time_s=0.0,
    open_files=20_000,
    memory_bytes=64 << 30,
    shared_memory_bytes=32 << 30,
    disk_bytes=100 << 30,
    unwritable="",
    chips=4,
    holders=[],
)
TPU = find_cluster("v4-16").value.world(simulated=False)


def seen(*looks: HostReport, unreachable: str = "", ahead_s: float = 0.0) -> dict[int, Seen]:
    """The first host as it is, the others with what is said of them."""
    others = {p: Seen(look, ahead_s, unreachable) for p, look in enumerate(looks)}
    return {**others, 0: Seen(looks[0], 0.0, "")}


def problems(*looks: HostReport, world: World = TPU, **said: object) -> list[HostProblem]:
    return judge(seen(*looks, **said), Needs(world))  # type: ignore[arg-type]


def only(found: list[HostProblem]) -> str:
    (problem,) = found
    return str(problem)


def test_hosts_without_a_problem_have_none() -> None:
    assert problems(GOOD, replace(GOOD, machine="second", address="10.0.0.2")) == []


def test_a_loopback_address_among_several_machines_is_named() -> None:
    second = replace(GOOD, machine="second", address="127.0.1.1")
    assert "host-0001: its address is 127.0.1.1" in only(problems(GOOD, second))


def test_on_one_machine_it_is_as_good_as_any() -> None:
    assert problems(GOOD, replace(GOOD, address="127.0.1.1")) == []


def test_a_host_that_cannot_connect_to_the_first_is_named() -> None:
    found = only(problems(GOOD, GOOD, unreachable="No route to host"))
    assert found.startswith("host-0001: cannot connect to host-0000 at 10.0.0.1: No route to host")
    assert "firewall" in found


def test_a_folder_that_cannot_be_written_is_named() -> None:
    look = replace(GOOD, unwritable="Read-only file system")
    assert "cannot write to the run's folder: Read-only file system" in only(problems(look))


def test_a_disk_without_room_for_a_checkpoint_is_named() -> None:
    (problem,) = judge(
        seen(replace(GOOD, disk_bytes=1 << 30)), Needs(TPU, checkpoint_bytes=2 << 30)
    )
    assert "1 GiB of disk space are free, but a checkpoint takes 2 GiB" in str(problem)


def test_memory_without_room_for_the_forecast_is_named() -> None:
    found = memory_problems(free_bytes=1 << 30)
    assert [one.is_fatal for one in found] == [True]
    assert (
        "1 GiB of memory are free, but each host needs about 2.12 GiB to save (in-memory "
        "checkpoints 2 GiB, agents 128 MiB)"
    ) in str(found[0])
    assert "Set it to null" in str(found[0])


def test_memory_within_the_error_of_the_forecast_is_a_warning() -> None:
    (problem,) = memory_problems(free_bytes=int(1.9 * 2**30))
    assert not problem.is_fatal


def test_memory_for_the_forecast_without_the_agents_is_enough() -> None:
    assert memory_problems(free_bytes=2 << 30) == []


def memory_problems(free_bytes: int) -> list[HostProblem]:
    peak = Phase("save", {"agents": AGENTS_BYTES, "in-memory checkpoints": 2 << 30})
    return judge(seen(replace(GOOD, memory_bytes=free_bytes)), Needs(TPU, host_memory=peak))


def test_the_wrong_number_of_chips_is_named() -> None:
    assert "found 3 of 4 TPUs" in only(problems(replace(GOOD, chips=3)))


def test_any_program_may_do_without_them() -> None:
    (problem,) = judge(seen(replace(GOOD, chips=0)), Needs(TPU, accelerators=False))
    assert not problem.is_fatal


def test_process_holding_a_chip_is_named() -> None:
    holder = Holder(4711, "eve", "python train.py", "/dev/accel0")
    found = only(problems(replace(GOOD, holders=[holder])))
    assert "process 4711 of eve (python train.py) has /dev/accel0 open" in found
    assert "kill 4711" in found


def test_hosts_on_cpus_need_no_chips() -> None:
    assert problems(replace(GOOD, chips=0), world=world_of(1, 1)) == []


def test_wrong_clock_warns_and_run_continues() -> None:
    (problem,) = problems(GOOD, GOOD, ahead_s=-60.0)
    assert "its clock is 60 s behind this machine's" in str(problem)
    assert not problem.is_fatal


@pytest.mark.parametrize(
    ("change", "word"),
    [({"open_files": 256}, "ulimit -n"), ({"shared_memory_bytes": 1 << 20}, "/dev/shm")],
)
def test_low_limits_warn_and_run_continues(change: dict, word: str) -> None:
    (problem,) = problems(replace(GOOD, **change))
    assert word in str(problem)
    assert not problem.is_fatal


def test_all_problems_of_all_hosts_are_reported_at_once() -> None:
    bad = replace(GOOD, chips=0, unwritable="Permission denied", open_files=100)
    assert [problem.host for problem in problems(bad, bad)] == [0, 0, 0, 1, 1, 1]


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """Four TPU chips, or eight GPUs, as files."""
    (tmp_path / "vfio").mkdir()
    names = ["accel0", "accel1", "vfio/0", "vfio/1", "vfio/vfio", "accelerometer", "null"]
    for name in [*names, *(f"nvidia{i}" for i in range(8)), "nvidiactl", "nvidia-uvm"]:
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def holder(dev: Path) -> Iterator[int]:
    """A process that has a chip open."""
    hold = f"import sys; file = open({str(dev / 'accel1')!r}); print(); sys.stdin.read()"
    command = [sys.executable, "-c", hold]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.parametrize(("platform", "chips"), [("tpu", 4), ("gpu", 8), ("cpu", 0)])
def test_chips_are_the_files_that_programs_open(dev: Path, platform: str, chips: int) -> None:
    assert preflight.run_preflight("10.0.0.1", dev, platform, dev).chips == chips


def test_of_gpus_only_those_count_that_may_be_seen(
    dev: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert preflight.run_preflight("10.0.0.1", dev, "gpu", dev).chips == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937,GPU-5bd1a2c8,GPU-1")
    assert preflight.run_preflight("10.0.0.1", dev, "gpu", dev).chips == 3


@pytest.mark.parametrize(("visible", "held"), [("0,1", 0), ("2,3", 1)])
def test_process_holding_an_invisible_gpu_is_ignored(
    dev: Path, monkeypatch: pytest.MonkeyPatch, visible: str, held: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    hold = f"import sys; file = open({str(dev / 'nvidia2')!r}); print(); sys.stdin.read()"
    command = [sys.executable, "-c", hold]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(preflight.run_preflight("10.0.0.1", dev, "gpu", dev).holders) == held
        process.kill()


def test_a_gpu_that_others_have_open_ends_nothing() -> None:
    gpus = find_cluster("h100-8").value.world(simulated=False)
    holder = Holder(4711, "root", "nvidia-persistenced", "/dev/nvidia0")
    (problem,) = problems(replace(GOOD, chips=8, holders=[holder]), world=gpus)
    assert not problem.is_fatal


def test_a_process_that_has_a_chip_open_is_found(dev: Path, holder: int) -> None:
    (found,) = preflight.run_preflight("10.0.0.1", dev, "tpu", dev).holders
    assert (found.pid, found.owner) == (holder, getpass.getuser())
    assert found.device == str(dev / "accel1")
    assert sys.executable in found.command


def test_a_folder_that_is_not_there_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    look = preflight.run_preflight("10.0.0.1", tmp_path / "runs" / "new", "cpu")
    assert look.unwritable == ""
    assert look.disk_bytes > 0
    assert not (tmp_path / "runs").exists()


def test_only_listening_hosts_are_reachable() -> None:
    port = preflight.listen("127.0.0.1", seconds=5.0)
    assert preflight.unreachable("127.0.0.1", port) == ""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        why = preflight.unreachable("127.0.0.1", free.getsockname()[1])
    assert why == "Connection refused"


def test_a_host_listens_at_the_address_that_the_hosts_use_alone() -> None:
    port = preflight.listen("127.0.0.2", seconds=5.0)
    assert preflight.unreachable("127.0.0.2", port) == ""
    assert preflight.unreachable("127.0.0.1", port) == "Connection refused"


def test_an_address_of_ipv6_is_named() -> None:
    found = only(problems(replace(GOOD, address="fd00::2")))
    assert found == f"host-0000: its address is fd00::2: {NEEDED}"
