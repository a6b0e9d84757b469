"""Clusters that stay up between runs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.cluster.schema import Local
from launcher.core.errors import HostError
from launcher.providers.local import warm
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.processes import wait_until
from tests.support.warm_clusters import SETTINGS, hosts
from tests.support.worlds import cpu_world

__all__ = ["hosts"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    warm.end("pod")


def test_a_cluster_that_nobody_kept_is_not_found() -> None:
    assert warm.find("pod", SETTINGS) is None
    assert not warm.end("pod")


def test_a_kept_cluster_is_found_until_it_is_ended(hosts: OwnedCluster, tmp_path: Path) -> None:
    warm.keep("pod", SETTINGS, hosts)
    hosts.close()
    found = warm.find("pod", SETTINGS)
    assert found is not None
    assert found.address == hosts.address
    found.close()
    assert (tmp_path / "cluster").exists()
    assert warm.end("pod")
    assert warm.find("pod", SETTINGS) is None
    assert not (tmp_path / "cluster").exists()


def test_other_hosts_than_the_kept_ones_are_refused(hosts: OwnedCluster) -> None:
    warm.keep("pod", SETTINGS, hosts)
    other = warm.WarmSettings(cpu_world(3, 1), Local())
    with pytest.raises(HostError, match="launch down pod"):
        warm.find("pod", other)


def test_a_cluster_whose_nodes_died_is_forgotten(hosts: OwnedCluster, tmp_path: Path) -> None:
    hosts.reaped.start("more", ["true"], dict(os.environ), tmp_path / "log")
    warm.keep("pod", SETTINGS, hosts)
    children = Path(f"/proc/{hosts.reaped.pid}/task/{hosts.reaped.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 1)
    os.kill(int(children.read_text()), 9)
    wait_until(lambda: warm.find("pod", SETTINGS) is None)


def test_another_process_with_the_recorded_id_is_never_ended(tmp_path: Path) -> None:
    """The record says when the process started, too."""
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    path = tmp_path / "state" / "slipway" / "clusters" / "pod.json"
    path.parent.mkdir(parents=True)
    path.write_text(f'{{"pid": {other.pid}, "start_time": 1}}')
    assert not warm.end("pod")
    assert other.poll() is None
    other.communicate(b"\n")


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense"])
def test_a_damaged_record_is_removed(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state" / "slipway" / "clusters" / "pod.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert warm.find("pod", SETTINGS) is None
    assert not path.exists()


def test_cluster_of_another_version_is_not_used_and_can_be_ended(
    hosts: OwnedCluster, tmp_path: Path
) -> None:
    warm.keep("pod", SETTINGS, hosts)
    path = tmp_path / "state" / "slipway" / "clusters" / "pod.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({name: record[name] for name in ("pid", "start_time", "settings")}))
    with pytest.raises(HostError, match=r"has no field `address`.*launch down pod"):
        warm.find("pod", SETTINGS)
    assert warm.end("pod")
    assert not (tmp_path / "cluster").exists()
