"""What makes `jax.distributed.initialize()` work in programs that know nothing of Slipway."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import trainer

DEADLINE_S = 120
FOR_JAX = Path(trainer.__file__).parent / "any_program"
PROGRAM = """\
import jax
jax.distributed.initialize()
print(jax.process_index(), jax.process_count(), jax.local_device_count(), jax.device_count())
"""
MISLEADING = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "nowhere",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}


def environment(*paths: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (FOR_JAX, *paths))),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        **more,
    }


def start(program: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outputs(programs: list[subprocess.Popen[str]]) -> list[str]:
    try:
        return [program.communicate(timeout=DEADLINE_S)[0] for program in programs]
    finally:
        for program in programs:
            program.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("others", [{}, MISLEADING], ids=["alone", "inside a Slurm step"])
def test_processes_find_each_other_without_arguments(others: dict[str, str]) -> None:
    contract = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "SLIPWAY_NUM_PROCESSES": "2",
        **others,
    }
    programs = [
        start(PROGRAM, environment(**contract, SLIPWAY_PROCESS_ID=str(process)))
        for process in (0, 1)
    ]
    assert outputs(programs) == ["0 2 2 4\n", "1 2 2 4\n"]


def test_without_the_contract_nothing_is_detected() -> None:
    program = "from jax._src.clusters import ClusterEnv\nimport jax\n"
    program += (
        "print(ClusterEnv._cluster_types[0].name, ClusterEnv._cluster_types[0].is_env_present())"
    )
    assert outputs([start(program, environment())]) == ["slipway False\n"]


def test_jax_does_not_warn_of_proxies_that_the_hosts_are_excepted_from() -> None:
    program = "import jax\njax.distributed.initialize()"
    contract = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "SLIPWAY_NUM_PROCESSES": "1",
        "SLIPWAY_PROCESS_ID": "0",
    }
    variables = environment(**contract, http_proxy="http://127.0.0.1:9", no_proxy="127.0.0.1")
    assert outputs([start(program, variables)]) == [""]


def test_plugins_that_are_installed_are_found_as_before(tmp_path: Path) -> None:
    (tmp_path / "jax_plugins" / "chips").mkdir(parents=True)
    (tmp_path / "jax_plugins" / "chips" / "__init__.py").write_text(
        "def initialize():\n    print('chips are here')\n"
    )
    program = "import jax\nprint(jax.device_count())"
    assert outputs([start(program, environment(tmp_path))]) == ["chips are here\n2\n"]
