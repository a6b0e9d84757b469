"""In-memory checkpoints: what a run goes on from when processes, hosts or bits are lost."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import hold_after_copies, sabotage_copy
from tests.support.fault_matrix import JOB, assert_finished
from tests.support.launches import Launch, Launcher
from tests.support.programs import agent_of, node_of, slots, trainer_of

pytestmark = pytest.mark.faults

STORED, IN_MEMORY = 30, 45
"""The newest step in storage and in memory while the run waits before step 50."""
ELASTIC = {"hosts": "{min: 1, max: 2}", "more": "wait_for_hosts_s: 0"}
WORDS = (
    "checkpoint.in_memory_every_steps=5", "mesh.data=1", "mesh.fsdp=-1", "deadlines.step_s=300",
    "retries.standby_after_s=0",
)  # fmt: skip


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """While this file does not exist, no attempt gets to step 50."""
    return tmp_path / "flag"


@pytest.fixture
def run(
    launch: Launcher, traces: Traces, tmp_path: Path, flag: Path, request: pytest.FixtureRequest
) -> Launch:
    """A run of two hosts that waits before step 50. The parameter: more of its cluster file."""
    provider, settled = hold_after_copies(tmp_path, IN_MEMORY, flag)
    (launch.folder / "job.yaml").write_text(JOB)
    of_file = getattr(request, "param", {})
    cluster = launch.cluster_file("faulty-cluster", provider, **of_file)
    run = launch.on(cluster, "faulty", WORDS)
    run.wait_for_event("checkpoint_saved", step=STORED)
    run.wait_for(lambda: all(path.exists() for path in settled))
    return run


def flip_bits(agent: int, kind: str) -> None:
    """Changes one bit in each of an agent's slots of a kind."""
    for path in slots(agent, kind):
        with path.open("r+b") as file:
            byte = file.read(1)
            file.seek(0)
            file.write(bytes([byte[0] ^ 1]))


def restored(run: Launch, attempt: int = 2) -> tuple[int, str]:
    """The step that an attempt has gone on from, and where that was."""
    event = run.wait_for_event("restored", attempt=attempt)
    return event["step"], event["source"]


def test_own_memory_is_read_then_the_copy_then_storage(
    run: Launch, unbroken: list[list[Any]], traces: Traces, flag: Path
) -> None:
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    assert restored(run) == (IN_MEMORY, "memory")
    run.wait_for_event("step", attempt=2)
    flip_bits(agent_of(traces, 1), "own")
    os.kill(trainer_of(traces, 0), signal.SIGABRT)  # a third SIGKILL at this step would be final
    assert restored(run, attempt=3) == (IN_MEMORY, "neighbor")
    run.wait_for_event("step", attempt=3)
    flip_bits(agent_of(traces, 0), "copy")
    os.kill(trainer_of(traces, 0), signal.SIGKILL)
    assert restored(run, attempt=4) == (STORED, "storage")
    assert run.log(0).count(f"step {IN_MEMORY} in the memory of the hosts: the data of") == 3
    flag.touch()
    assert_finished(run, unbroken, traces)


@pytest.mark.full
@pytest.mark.parametrize("run", [{"more": "spares: 1"}], indirect=True)
def test_after_the_loss_of_a_host_its_neighbor_has_its_shards(
    run: Launch, unbroken: list[list[Any]], traces: Traces, flag: Path
) -> None:
    os.kill(node_of(traces, 1), signal.SIGKILL)
    assert restored(run) == (IN_MEMORY, "neighbor")
    flag.touch()
    assert_finished(run, unbroken, traces)


@pytest.mark.full
def test_when_both_holders_of_a_shard_are_lost_storage_is_read(
    run: Launch, unbroken: list[list[Any]], traces: Traces, flag: Path
) -> None:
    for agent in [agent_of(traces, host) for host in (0, 1)]:
        os.kill(agent, signal.SIGKILL)
    assert restored(run) == (STORED, "storage")
    flag.touch()
    assert_finished(run, unbroken, traces)


@pytest.fixture
def stuck_copy(
    start: Callable[..., Launch], tmp_path: Path, request: pytest.FixtureRequest
) -> Launch:
    """A run in which the copy of step 45 of the parameter's host does not end."""
    provider, half = sabotage_copy(tmp_path, request.param, IN_MEMORY)
    run = start("faulty", provider, "spares: 1", *WORDS)
    run.wait_for_event("checkpoint_saved", step=STORED)
    run.wait_for(half.exists)
    return run


@pytest.mark.parametrize("stuck_copy", [1], indirect=True)
def test_a_host_that_is_lost_during_its_copy_leaves_the_one_before(
    stuck_copy: Launch, unbroken: list[list[Any]], traces: Traces
) -> None:
    os.kill(node_of(traces, 1), signal.SIGKILL)
    assert restored(stuck_copy) == (IN_MEMORY - 5, "neighbor")
    assert_finished(stuck_copy, unbroken, traces)


@pytest.mark.full
@pytest.mark.parametrize("stuck_copy", [0], indirect=True)
def test_a_neighbor_that_is_lost_during_a_copy_costs_nothing(
    stuck_copy: Launch, unbroken: list[list[Any]], traces: Traces
) -> None:
    os.kill(node_of(traces, 1), signal.SIGKILL)
    assert restored(stuck_copy) == (IN_MEMORY, "neighbor")
    assert_finished(stuck_copy, unbroken, traces)


@pytest.mark.parametrize("run", [ELASTIC], indirect=True)
def test_it_is_read_onto_fewer_hosts(
    run: Launch, unbroken: list[list[Any]], traces: Traces, flag: Path
) -> None:
    os.kill(node_of(traces, 1), signal.SIGKILL)
    assert restored(run) == (IN_MEMORY, "neighbor")
    flag.touch()
    assert_finished(run, unbroken, traces)
