"""Hosts of a simulated pod, reserved in Ray and given back."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.gang import reservation
from launcher.gang.connect import connected
from launcher.gang.host_selection import places
from launcher.gang.reservation import Reservation, reserve
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.processes import wait_until
from trainer.contract.planning.plan import World


@pytest.fixture(scope="module")
def hosts(pod: OwnedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnedCluster]:
    with connected(pod, tmp_path_factory.mktemp("run"), Listener()):
        yield pod


@contextmanager
def stopped_raylet(folder: Path | None, process: int) -> Iterator[None]:
    """Ray's process on a host is stuck, and Ray has not noticed yet."""
    for node in psutil.process_iter(["cmdline"]):
        words = node.info["cmdline"] or [""]
        if words[0].endswith("raylet") and any(f"{folder}/{process}/" in word for word in words):
            os.kill(node.pid, signal.SIGSTOP)
            try:
                yield
            finally:
                os.kill(node.pid, signal.SIGCONT)
            return
    raise LookupError(f"no raylet of host {process}")


def take(world: World, hosts: OwnedCluster) -> Reservation:
    """All hosts of a world, of which none is held."""
    _, added = reserve(world, hosts, 20.0)
    assert added is not None
    return added


def test_processes_on_other_hosts_than_reserved_for_them_are_refused(
    hosts: OwnedCluster, pod_world: World
) -> None:
    held = take(pod_world, hosts)
    try:
        held.check_order()
        swapped = Reservation(
            held.cluster, held.placement_group, held.bundle, held.hosts[::-1], lambda: None
        )
        with pytest.raises(HostError, match="not be in the order of the TPU's workers"):
            swapped.check_order()
    finally:
        held.release()


def test_hosts_not_reserved_in_time_are_released_and_reservable(
    hosts: OwnedCluster, pod_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: len(places(pod_world, hosts, ours=())) == 2, 30.0)
    monkeypatch.setattr(reservation, "TAKE_TIMEOUT_S", 1.0)
    with stopped_raylet(hosts.folder, 1), pytest.raises(HostError, match="could not be reserv"):
        reserve(pod_world, hosts, 2.0)
    assert hosts.avoided
    monkeypatch.undo()
    held = take(pod_world, hosts)
    assert [host.number for host in held.hosts] == [0, 1]
    held.release()
