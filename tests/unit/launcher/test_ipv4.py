"""Addresses of IPv6 are refused where they are first seen, and the error says what is needed."""

import pytest

from launcher.cluster.schema import Attach
from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.core.ipv4 import NEEDED
from launcher.providers.attach import provider as attach
from launcher.providers.kubernetes import provider as kubernetes
from launcher.providers.ray.workspace import free_port
from launcher.providers.slurm import node_entrypoint


def test_a_cluster_file_with_an_address_of_ipv6_is_refused() -> None:
    with pytest.raises(ValueError, match=NEEDED):
        Attach(kind="attach", address="[::1]:6379")


def test_a_ray_head_that_is_found_at_ipv6_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "[fd00::2]:6379")
    with pytest.raises(HostError, match=r"the Ray head is \[fd00::2\]\. " + NEEDED):
        attach.check(Attach(kind="attach", address="auto"))


def test_no_port_of_an_address_of_ipv6_is_tried() -> None:
    with pytest.raises(HostError, match=f"this host is ::1. {NEEDED}"):
        free_port("::1")


@pytest.mark.parametrize("address", ["fd00::2", "ip6-localhost.invalid"])
def test_a_slurm_node_without_ipv4_is_refused(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(
        node_entrypoint, "command", lambda *_: f"NodeName=n1 NodeAddr={address} State=IDLE"
    )
    with pytest.raises(HostError, match=NEEDED):
        node_entrypoint.own_address("n1")


def test_a_pod_of_ipv6_is_refused_before_it_is_asked(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(kubernetes, "query", lambda *_: pytest.fail("it was asked"))
    with pytest.raises(HostError, match=f"the head's pod is fd00::2. {NEEDED}"):
        kubernetes._joined("fd00::2:6379", tmp_path, tmp_path, None, Listener())  # type: ignore[arg-type]
