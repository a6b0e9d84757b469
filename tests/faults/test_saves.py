"""Saves on a storage that is slow, or that hangs, at the end of a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage_commits
from tests.support.fault_matrix import ends
from tests.support.launches import Launch, Launcher
from trainer.contract.records import checkpoint_metadata

pytestmark = pytest.mark.faults

SLOW_S, LIMIT_S = 10.0, 6.0
SLOWLY = """\
if moment == "written":
        import tensorstore
        store = tensorstore.KvStore.open("file://" + {folder!r} + "/").result()
        ends = time.monotonic() + {slow_s}
        while time.monotonic() < ends:
            time.sleep(0.2)
            store.write("more", b"of it").result()
"""


@pytest.fixture
def save_once(launch: Launcher, start: Callable[..., Launch], tmp_path: Path) -> Callable:
    """Starts a run on one host that saves at its end, with `code` at each moment of the commit."""

    def save_once(code: str, *words: str) -> Launch:
        cluster = launch.cluster_file("alone", sabotage_commits(tmp_path, code), hosts=1)
        return launch.on(cluster, "slow", ["steps=12", "retries.failures=0", *words])

    return save_once


@pytest.mark.full
def test_a_last_save_that_moves_may_take_longer_than_its_limit(
    save_once: Callable[..., Launch], traces: Traces, tmp_path: Path
) -> None:
    code = SLOWLY.format(folder=str(tmp_path / "more"), slow_s=SLOW_S)
    run = save_once(code, f"deadlines.save_s={LIMIT_S}")
    assert run.wait() == 0, run.output
    assert not ends(run)
    (saved,) = [e for e in run.events() if e["event"] == "checkpoint_saved"]
    assert saved["seconds"] > SLOW_S > LIMIT_S
    assert checkpoint_metadata.steps(run.run_dir / "checkpoints") == [12]
    traces.assert_nothing_left(timeout_s=5.0)


def test_hanging_last_save_names_host_and_key_of_its_limit(
    save_once: Callable[..., Launch], traces: Traces
) -> None:
    run = save_once("moment == 'written' and time.sleep(999)", "deadlines.save_s=2")
    assert run.wait() == 1, run.output
    failed = "host 0 error: the last checkpoint could not be saved: no bytes were written for 2 s"
    (line,) = [one for one in run.output.splitlines() if failed in one]
    assert "(deadlines.save_s)" in line
    assert "attempt 1 ended: host-0000 exited with code 1" in run.output
    assert not checkpoint_metadata.steps(run.run_dir / "checkpoints")
    traces.assert_nothing_left(timeout_s=5.0)
