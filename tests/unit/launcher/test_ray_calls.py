"""Calls with a deadline, and the logs that are kept."""

import threading
from pathlib import Path

import pytest

from launcher.core.errors import HostError
from launcher.providers.ray import logs
from launcher.providers.ray.client import bounded


def test_a_call_in_time_gives_what_it_returns_or_raises() -> None:
    assert bounded("counting", 5.0, lambda: 7) == 7
    with pytest.raises(KeyError):
        bounded("looking", 5.0, lambda: {}["absent"])


def test_a_call_that_hangs_is_named() -> None:
    over = threading.Event()
    with pytest.raises(HostError, match="connecting: Ray did not answer within 0 s"):
        bounded("connecting", 0.01, over.wait)
    over.set()


def test_a_call_does_not_wait_for_a_head_that_is_gone() -> None:
    over = threading.Event()
    with pytest.raises(HostError, match="looking: the head of the Ray cluster has ended"):
        bounded("looking", 3600.0, over.wait, head_is_down=lambda: True)
    over.set()


def test_the_end_of_every_log_is_kept(tmp_path: Path) -> None:
    node = tmp_path / "ray" / "1" / "session_latest" / "logs"
    node.mkdir(parents=True)
    (node / "raylet.out").write_text("a" + "b" * logs.LONGEST_BYTES)
    (node / "empty.err").touch()
    (tmp_path / "ray" / "host-0001.log").write_text("up")
    (tmp_path / "ray" / "token").write_text("secret")
    assert logs.keep(tmp_path / "ray", tmp_path / "kept")
    kept = {str(p.relative_to(tmp_path / "kept")) for p in tmp_path.glob("kept/**/*.*")}
    assert kept == {"1/raylet.out", "host-0001.log"}
    assert (tmp_path / "kept/1/raylet.out").read_text() == "b" * logs.LONGEST_BYTES


def test_a_cluster_elsewhere_has_no_logs_to_keep(tmp_path: Path) -> None:
    assert not logs.keep(None, tmp_path / "kept")
