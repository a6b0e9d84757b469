"""What a run's events say about its saves and faults, for the interval of the next attempt."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.runs.save_account import SaveAccount
from tests.support.any_events import ENDS, STATES, any_event
from tests.support.run_builders import HOUR_S, RunEvents
from tests.support.run_folders import event_of
from trainer.contract.planning.save_interval import SaveStatistics

ASSUMED = SaveStatistics(blocked_s=7.0)


def _known(run: RunEvents) -> SaveStatistics:
    account = SaveAccount()
    for event in run.events:
        account.add(event)
    return account.statistics(ASSUMED)


def _attempt(run: RunEvents, hours: float = 1.0, processes: int = 2) -> RunEvents:
    """An attempt whose processes were connected for some hours."""
    return run.started().host("initialized", processes=processes).after(hours * HOUR_S)


def _failed(run: RunEvents, end_reason: str = "crash", **fields: Any) -> RunEvents:
    return run.launcher("attempt_ended", end_reason=end_reason, **fields).next_attempt()


def test_a_new_run_knows_only_the_assumed_cost():
    assert _known(RunEvents().started()) == ASSUMED


@pytest.mark.parametrize(
    ("end_reason", "faults"),
    [("crash", 1), ("hang", 1), ("lost", 1), ("preempted", 1), ("final", 0), ("stopped", 0),
     ("resized", 0), ("budget", 0), ("finished", 0)],
)  # fmt: skip
def test_ends_that_lose_steps_are_faults(end_reason, faults):
    run = _failed(_attempt(RunEvents()), end_reason, step=9)
    assert (_known(run).faults, _known(run).follows_fault) == (faults, bool(faults))


def test_a_preemption_with_a_save_is_no_fault():
    run = _attempt(RunEvents()).host("checkpoint_saved", step=9)
    assert _known(_failed(run, "preempted", step=9)).faults == 0


def test_a_preemption_whose_save_was_discarded_is_a_fault():
    run = _attempt(RunEvents()).host("checkpoint_saved", step=9)
    run = run.host("checkpoints_discarded", newest=6)
    assert _known(_failed(run, "preempted", step=9)).faults == 1


def test_time_counts_from_the_connection_to_the_end_for_each_host():
    run = _failed(_attempt(RunEvents(), hours=2, processes=4))
    run = _attempt(run.after(5 * HOUR_S), hours=1, processes=3)
    assert _known(_failed(run)).host_s == pytest.approx(11 * HOUR_S)


def test_a_fault_that_memory_served_does_not_count():
    run = _attempt(_failed(_attempt(RunEvents())))
    assert _known(run).faults == 1
    assert _known(run.host("restored", step=3, source="neighbor")).faults == 0


def test_a_fault_that_storage_served_counts_and_is_no_longer_the_last():
    run = _attempt(_failed(_attempt(RunEvents()))).host("restored", step=3, source="storage")
    assert (_known(run).faults, _known(run).follows_fault) == (1, False)


def test_a_lost_launcher_counts_as_a_fault_at_its_last_event():
    run = _attempt(RunEvents(), hours=1).host("step", step=3).after(10 * HOUR_S)
    known = _known(run.launcher("command_started"))
    assert (known.faults, known.host_s) == (1, pytest.approx(2 * HOUR_S))


def test_measured_saves_are_kept_for_the_next_attempt():
    chosen = {"seconds": 60.0, "mtbf_s": 9e9, "faults": 0, "cost_s": 2.5, "blocked_s": 2.5}
    run = _attempt(RunEvents()).host("checkpoint_interval", slowed_s=0.0, saves=0, **chosen)
    assert _known(run).blocked_s == ASSUMED.blocked_s
    known = _known(run.host("checkpoint_interval", slowed_s=-0.5, saves=4, **chosen))
    assert (known.blocked_s, known.slowed_s, known.saves) == (2.5, -0.5, 4)


KINDS = ["initialized", "attempt_ended", "checkpoint_saved", "restored", "command_started"]


@given(
    lines=st.lists(any_event([*STATES, *ENDS], KINDS), max_size=40),
    source=st.sampled_from([None, "storage", "memory"]),
)
def test_any_events_give_statistics_that_a_plan_accepts(lines, source):
    account = SaveAccount()
    for line in lines:
        account.add(event_of({"processes": 2, "source": source, **line}))
    known = account.statistics(ASSUMED)
    assert known.faults >= 0 and known.host_s >= 0
    assert SaveStatistics.model_validate_json(known.model_dump_json()) == known
