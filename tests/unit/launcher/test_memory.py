"""A simulation that the machine cannot hold is refused, with figures."""

import re

import pytest

from launcher.cluster.schema import find_cluster
from launcher.core.errors import HostError
from launcher.core.memory import available_bytes, total_bytes
from launcher.providers.local.memory import (
    HEAD_BYTES,
    NODE_BYTES,
    TRAINER_BYTES,
    array_bytes,
    refuse_if_too_large,
)
from tests.support.worlds import cpu_world
from trainer.contract.estimates.host_memory import HostMemory, Phase


def test_a_small_world_fits() -> None:
    refuse_if_too_large(cpu_world(1, 1), state_bytes=0)


def test_a_world_that_does_not_fit_is_refused_with_the_largest_that_does() -> None:
    with pytest.raises(HostError, match=r"--simulate-hosts [1-9]\d* is the most that fits"):
        refuse_if_too_large(cpu_world(10_000, 1), state_bytes=0)


def test_the_largest_that_fits_is_a_size_that_exists() -> None:
    pod = find_cluster("tpu-v6e-256").value.world(simulated=True)
    with pytest.raises(HostError) as caught:
        refuse_if_too_large(pod, state_bytes=available_bytes() - (12 << 30))
    hosts = re.search(r"--simulate-hosts (\d+)", str(caught.value))
    assert hosts and int(hosts[1]) in (1, 2, 4, 8)


def test_state_that_fills_the_memory_alone_is_refused() -> None:
    with pytest.raises(HostError, match="not even one host fits"):
        refuse_if_too_large(cpu_world(1, 1), state_bytes=available_bytes())


def test_standby_processes_count_on_every_host() -> None:
    with pytest.raises(HostError, match="not even one host fits"):
        refuse_if_too_large(cpu_world(1, 1), state_bytes=0, standby_bytes=available_bytes())


def test_memory_that_other_programs_use_counts_for_a_run_that_starts_later() -> None:
    used = total_bytes() - available_bytes()
    assert used > 0
    state_bytes = total_bytes() - HEAD_BYTES - NODE_BYTES - TRAINER_BYTES
    refuse_if_too_large(cpu_world(1, 1), state_bytes, later=True)
    with pytest.raises(HostError):
        refuse_if_too_large(cpu_world(1, 1), state_bytes)
    with pytest.raises(HostError):
        refuse_if_too_large(cpu_world(1, 1), state_bytes + 1, later=True)


def test_the_phase_with_the_most_arrays_counts_without_programs() -> None:
    compiling = Phase("compile", {"process": 900, "programs": 900, "arrays": 10})
    saving = Phase("save", {"process": 100, "arrays": 10, "staging": 5, "standby process": 100})
    assert array_bytes(HostMemory((compiling, saving), export_bytes=900)) == 15


def test_an_unknown_program_has_no_known_arrays() -> None:
    assert array_bytes(None) == 0
