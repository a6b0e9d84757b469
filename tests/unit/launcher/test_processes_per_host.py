"""Several processes on each host: which the cluster file allows, and what each of them gets."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.commands.plan_result import plan_result
from launcher.core.results import GangResult, ProcessExit
from launcher.health.hangs import HangDetector
from launcher.planning.planner import TrainingLaunch, make_launch
from launcher.runs.host_logs import HostLogs
from launcher.ui.plan_view import describe_world
from tests.support.run_folders import event_of
from tests.support.worlds import tiny_job
from trainer.contract.config.loader import ConfigError, Loaded
from trainer.contract.protocol.environment import (
    HOST_MEMORY_BYTES,
    JAX_LOCAL_DEVICE_IDS,
    NUM_PROCESSES,
    PROCESS_ID,
    PROCESSES_PER_HOST,
    XLA_FLAGS,
)

GPUS = "accelerator: h100-16\nprocesses_per_host: %d\nprovider: {kind: slurm}\nstorage: /shared\n"
SAVING = {"every_steps": 10, "in_memory_every_steps": 10}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launch_of(text: str, *, simulate: bool = False, **job: Any) -> TrainingLaunch:
    Path("c.yaml").write_text(text)
    loaded = Loaded(tiny_job(**job), "job.yaml", {})
    made = make_launch(loaded, find_cluster("c.yaml"), Path("runs"), ClusterRef(simulate=simulate))
    assert isinstance(made, TrainingLaunch)
    return made


def problems(text: str, **job: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        launch_of(text, **job)
    return caught.value.lines


def test_a_number_that_does_not_divide_the_devices_is_refused(folder: Path) -> None:
    assert problems(GPUS % 3) == [
        "c.yaml:2: processes_per_host: expected a divisor of the 8 devices of a host, found 3"
    ]


def test_tpus_have_one_process_on_each_host(folder: Path) -> None:
    assert problems("accelerator: v4-32\nprocesses_per_host: 4\nprovider: {kind: local}\n") == [
        "c.yaml:2: processes_per_host: expected 1, found 4: one process has all TPU chips of a host"
    ]


def test_it_is_reported_together_with_other_problems(folder: Path) -> None:
    text = "accelerator: v4-32\nprocesses_per_host: 4\nspares: 1\nprovider: {kind: gcp}\n"
    found = problems(text)
    assert [line.split(" ")[1] for line in found] == ["processes_per_host:", "spares:"]


def test_checks_of_hosts_need_one_process_on_each(folder: Path) -> None:
    job = {"integrity": {"replay_every": 10}, "checkpoint": {"every_steps": 10}}
    assert problems(GPUS % 8, **job) == [
        "job.yaml: integrity: compares hosts with one process each, found processes_per_host: 8 "
        "in the cluster file. Remove one of them"
    ]


def test_processes_of_a_host_are_neighbors_and_share_its_gpus(folder: Path) -> None:
    launch = launch_of(GPUS % 4)
    found = [launch.environment(process) for process in range(8)]
    assert [one[JAX_LOCAL_DEVICE_IDS] for one in found] == 2 * ["0,1", "2,3", "4,5", "6,7"]
    assert [one[PROCESS_ID] for one in found] == list("01234567")
    assert {(one[NUM_PROCESSES], one[PROCESSES_PER_HOST]) for one in found} == {("8", "4")}
    assert "CUDA_VISIBLE_DEVICES" not in found[0]  # the same for all, as NCCL needs it


def test_a_process_that_is_alone_on_its_host_has_all_gpus(folder: Path) -> None:
    found = launch_of(GPUS % 1).environment(1)
    assert not {JAX_LOCAL_DEVICE_IDS, PROCESSES_PER_HOST} & found.keys()


def test_simulated_gpus_are_as_many_cpu_devices_of_each_process(folder: Path) -> None:
    found = launch_of(GPUS % 4, simulate=True).environment(5)
    assert found[XLA_FLAGS].endswith("device_count=2")
    assert JAX_LOCAL_DEVICE_IDS not in found


def test_the_mesh_is_that_of_one_process_per_host(folder: Path) -> None:
    few, many = launch_of(GPUS % 1).plan, launch_of(GPUS % 8).plan
    assert many.world.processes == 8 * few.world.processes == 16
    assert (many.mesh, many.device_order) == (few.mesh, few.device_order)
    assert many.parameters == few.parameters


def test_each_process_reads_the_rows_of_its_own_devices(folder: Path) -> None:
    few, many = (launch_of(GPUS % count, mesh={"data": -1, "fsdp": 1}).plan for count in (1, 4))
    assert (few.batch.rows_per_process, many.batch.rows_per_process) == (8, 2)
    assert many.batch.block_of_process == tuple(range(8))
    shared = launch_of(GPUS % 8, mesh={"data": 4, "tensor": 4}).plan.batch
    assert shared.block_of_process == (0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4


def test_the_memory_of_a_host_is_divided_among_its_processes(folder: Path) -> None:
    launch = launch_of(GPUS % 4, checkpoint=SAVING)
    assert int(launch.environment(0)[HOST_MEMORY_BYTES]) == launch.in_memory_bytes // 4


def test_the_plan_shows_processes_and_their_hosts(folder: Path) -> None:
    launch = launch_of(GPUS % 8)
    assert describe_world(launch) == "c: 2 hosts x 8 devices, 8 processes per host of h100-16"
    shown = plan_result(launch).processes
    assert [one.host for one in shown] == [0] * 8 + [1] * 8
    assert "processes" not in describe_world(launch_of(GPUS % 1))


def test_the_run_is_as_large_as_its_number_of_hosts(folder: Path) -> None:
    text = (GPUS % 8).replace("h100-16", "h100-32\nhosts: {min: 2, max: 4}")
    data = {"source": "stdlib", "seq_len": 64, "global_batch": 96}
    assert launch_of(text, data=data).sizes == (2, 3, 4)


def test_messages_name_a_process_and_its_host() -> None:
    killed = GangResult({5: ProcessExit(9, 0.0)}, 5, processes_per_host=4)
    assert killed.reason.startswith("process-0005 (host-0001) was killed by SIGKILL")


def test_a_hang_names_the_process_that_is_behind() -> None:
    watch = HangDetector(4, processes_per_host=2)
    watch.on_event(event_of({"process": 3, "event": "suspended", "seconds": 3.0}), 1000.0)
    assert str(watch.poll(1000.0)).startswith("process-0003 (host-0001): stopped by a signal")


def test_logs_are_those_of_processes_in_the_newest_attempt(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("host-0000", "process-0000", "process-0001"):
        (logs / f"{name}.log").write_text(f"from {name}\n")
    found = HostLogs(tmp_path, None)
    assert (found.noun, found.hosts) == ("process", [0, 1])
    lines: list[tuple[int, str]] = []
    with closing(found):
        found.read(lambda process, line: lines.append((process, line)))
    assert lines == [(0, "from process-0000"), (1, "from process-0001")]
