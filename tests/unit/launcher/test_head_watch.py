"""Whether a head that is not ours still listens."""

import socket

import pytest

from launcher.providers.ray import head_monitor
from launcher.providers.ray.head_monitor import HeadMonitor


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_monitor, "POLL_INTERVAL_S", 0.0)


def test_a_head_that_listens_is_there_and_one_that_stopped_is_gone() -> None:
    with socket.socket() as head:
        head.bind(("127.0.0.1", 0))
        head.listen()
        watch = HeadMonitor(f"127.0.0.1:{head.getsockname()[1]}")
        assert not watch.is_gone
    assert watch.is_gone


def test_a_head_out_of_reach_is_gone_only_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_monitor, "unreachable", lambda address, timeout_s: TimeoutError())
    watch = HeadMonitor("10.0.0.1:6379")
    assert not watch.is_gone
    monkeypatch.setattr(head_monitor, "UNREACHABLE_S", 0.0)
    assert watch.is_gone
