"""A job whose forecast exceeds the memory of the hosts is refused, at the key to change."""

from pathlib import Path
from typing import Any

import pytest

from launcher.cluster.schema import Cluster, ClusterRef
from launcher.planning.host_memory import NO_REMEDY, available_bytes, problem, remedy_of
from launcher.planning.planner import make_launch
from tests.support.worlds import cpu_world, tiny_job
from trainer.contract.config.loader import Loaded
from trainer.contract.errors import Problem
from trainer.contract.estimates.host_memory import HostMemory, Phase

GIB = 1 << 30


def cluster_of(**keys: Any) -> Cluster:
    ssh = {"kind": "ssh", "hosts": ["a", "b"]}
    return Cluster.model_validate(
        {"accelerator": "cpu", "hosts": 2, "devices_per_host": 1, "provider": ssh, **keys}
    )


def problem_of(key: str, message: str) -> Problem:
    return Problem(key=key, message=message)


def memory_of(**parts: int) -> HostMemory:
    return HostMemory((Phase("run", {"process": 1}), Phase("save", parts)), export_bytes=0)


def found(available_gib: float, **parts: int) -> Problem | None:
    cluster = cluster_of(host_memory_gib=available_gib)
    return problem(problem_of, cluster, cluster.world(simulated=False), memory_of(**parts))


def test_a_job_that_just_fits_is_accepted() -> None:
    assert found(2, staging=2 * GIB) is None


def test_a_job_that_does_not_fit_names_phase_parts_and_memory() -> None:
    refused = found(2, staging=2 * GIB, process=1 << 20)
    assert refused
    assert refused.message.startswith(
        "each host needs about 2 GiB to save (staging 2 GiB, process 1 MiB), but it has 2 GiB"
    )


@pytest.mark.parametrize(
    ("part", "key"),
    [
        ("staging", "checkpoint"),
        ("loader", "data.global_batch"),
        ("step", "data.global_batch"),
        ("in-memory checkpoints", "checkpoint.in_memory_every_steps"),
        ("standby process", "retries.standby_after_s"),
        ("offloaded moments", "optimizer.offload_moments"),
    ],
)
def test_the_largest_part_that_can_change_decides_the_key(part: str, key: str) -> None:
    assert remedy_of(Phase("save", {"compiler": 9, part: 5, "arrays": 1}))[0] == key


def test_without_such_a_part_only_larger_hosts_help() -> None:
    assert remedy_of(Phase("compile", {"compiler": 9, "process": 1})) == NO_REMEDY


@pytest.mark.parametrize(
    ("accelerator", "gigabytes"), [("v5e-16", 192), ("v6e-8", 1440), ("v6e-1", 176), ("v5p-8", 448)]
)
def test_machine_types_of_tpus_have_a_known_memory(accelerator: str, gigabytes: int) -> None:
    cluster = cluster_of(
        accelerator=accelerator, hosts=None, devices_per_host=None, provider={"kind": "local"}
    )
    assert available_bytes(cluster, cluster.world(simulated=False)) == gigabytes * 10**9


def test_the_cluster_file_overrides_the_machine_type() -> None:
    cluster = cluster_of(
        accelerator="v5e-16", hosts=None, devices_per_host=None, provider={"kind": "local"},
        host_memory_gib=100,
    )  # fmt: skip
    assert available_bytes(cluster, cluster.world(simulated=False)) == 100 * GIB


def test_the_memory_of_other_hosts_is_unknown() -> None:
    cluster = cluster_of()
    assert available_bytes(cluster, cluster.world(simulated=False)) is None


def test_simulated_hosts_have_the_memory_of_this_machine() -> None:
    cluster = cluster_of(host_memory_gib=1)
    assert available_bytes(cluster, cluster.world(simulated=True)) is None
    assert available_bytes(cluster, cpu_world(2, 1)) is None


@pytest.mark.parametrize(("gib", "sizes"), [(20, [1]), (10, [])])
def test_an_elastic_run_does_not_shrink_to_hosts_without_memory(gib: int, sizes: list[int]) -> None:
    large = {"layers": 16, "d_model": 2048, "heads": 16, "d_ff": 8192}
    cluster = cluster_of(
        accelerator="h100-16", hosts={"min": 1, "max": 2}, devices_per_host=8, host_memory_gib=gib
    )
    launch = make_launch(
        Loaded(tiny_job(model=large, storage="/shared"), "job.yaml", {}),
        Loaded(cluster, "c.yaml", {}),
        Path("runs"),
        ClusterRef(),
    )
    assert [spec.plan.world.processes for spec in launch.fallback_specs()] == sizes
