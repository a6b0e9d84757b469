"""Storage that fails for some seconds beside a killed trainer, as when its server reboots."""

import os
import signal
from collections.abc import Callable

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_matrix import assert_finished, ends
from tests.support.faulty_storage import FaultyStorage
from tests.support.launches import Launch, Launcher
from tests.support.programs import trainer_of
from tests.support.sampling import sampled

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("what", sampled(("checkpoints", "corpus"), ("checkpoints",)))
def test_stale_handles_at_attempt_start_are_retried_without_damage(
    launch: Launcher, start: Callable[..., Launch], unbroken: list, traces: Traces, what: str
) -> None:
    storage = FaultyStorage(launch.folder, f"{what}/")
    preloaded = ", ".join(f"{name}: '{value}'" for name, value in storage.environment.items())
    run = start("faulty", f", host_env: {{0: {{{preloaded}}}, 1: {{{preloaded}}}}}")
    run.wait_for_event("checkpoint_saved")
    storage.fail()
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    run.wait_for(lambda: "Stale file handle" in run.output)
    storage.recover()
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["crash"]
    assert not list((run.run_dir / "checkpoints").glob("*.damaged*"))
