"""The share of time in which a process is busy, which tells a hang from work."""

import time
from pathlib import Path

import pytest

from trainer.telemetry import busy_share
from trainer.telemetry.busy_share import BusyShare

STAT = "4711 (a ) D name) %s 1 4711 4711 0 -1\n"


def test_a_process_that_computes_is_busier_than_one_that_sleeps() -> None:
    busy = BusyShare()
    used_s = time.process_time()
    while time.process_time() - used_s < 0.1:
        pass
    computing = busy.take()
    time.sleep(0.1)
    assert busy.take() < computing


@pytest.mark.parametrize(("state", "is_busy"), [("D", True), ("S", False)])
def test_a_process_that_waits_for_a_disk_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, is_busy: bool
) -> None:
    stat = tmp_path / "stat"
    stat.write_text(STAT % state)
    monkeypatch.setattr(busy_share, "MAIN_THREAD", stat)
    busy = BusyShare()
    time.sleep(0.05)
    assert (busy.take() >= 1.0) == is_busy
