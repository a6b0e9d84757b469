"""A simulation that the machine cannot hold is refused, with figures."""

import re

import pytest

from launcher.cluster.schema import find_cluster
from launcher.core.errors import HostError
from launcher.core.memory import available_bytes
from launcher.providers.local.memory import refuse_if_too_large
from tests.support.worlds import cpu_world


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
