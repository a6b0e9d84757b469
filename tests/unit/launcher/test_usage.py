"""The usage of a run: hours, chip-hours and dollars, from its events."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.core.usage import Usage
from launcher.runs.usage import UsageAccount
from tests.support.any_events import ENDS, NAMES, STATES, any_event
from tests.support.run_builders import RunEvents
from tests.support.run_folders import event_of

HOUR = 3600.0


def usage_of(run: RunEvents, now: float | None = None) -> Usage:
    account = UsageAccount()
    for event in run.events:
        account.add(event)
    return account.until(now)


def attempt(run: RunEvents, chips: int, price: float | None = None) -> RunEvents:
    """An attempt that waits an hour for its hosts and has then started."""
    more: dict[str, Any] = {} if price is None else {"price_per_chip_hour": price}
    run.launcher("attempt_started", hosts=1, chips=chips, **more)
    return run.state("provisioning").after(HOUR).state("starting")


def test_time_counts_from_the_hosts_checks_to_the_end_of_the_run() -> None:
    run = attempt(RunEvents(), chips=8).after(HOUR).state("running").after(HOUR).state("finished")
    assert usage_of(run.after(HOUR).launcher("heard")) == Usage(2.0, 16.0, 0.0, 16.0)


def test_a_price_makes_chip_hours_dollars() -> None:
    run = attempt(RunEvents(), chips=8, price=2.5).after(HOUR).state("failed")
    assert usage_of(run) == Usage(1.0, 8.0, 20.0)
    assert usage_of(run).cost == 20.0


def test_a_cost_is_unknown_when_an_attempt_has_no_price() -> None:
    run = attempt(RunEvents(), chips=1, price=2.5).after(HOUR).state("failed")
    attempt(run.launcher("command_started").next_attempt(), chips=1).after(HOUR).state("failed")
    assert usage_of(run) == Usage(2.0, 2.0, 2.5, 1.0)
    assert usage_of(run).cost is None


def test_hosts_that_are_held_between_two_attempts_count() -> None:
    run = attempt(RunEvents(), chips=4).state("running").after(HOUR).ended("crash")
    run.state("backing_off").after(HOUR).next_attempt()
    run.launcher("attempt_started", hosts=1, chips=2).state("provisioning").after(HOUR)
    assert usage_of(run.state("starting")) == Usage(3.0, 4 + 4 + 2, 0.0, 4 + 4 + 2)


def test_time_between_a_lost_run_and_the_next_command_does_not_count() -> None:
    run = attempt(RunEvents(), chips=4).state("running").after(HOUR).host("step", step=1)
    run.after(0.0).launcher("heard").after(50 * HOUR).launcher("command_started")
    assert usage_of(attempt(run.next_attempt(), chips=4).after(HOUR)).hours == 1.0
    assert usage_of(run.state("finished")).hours == 2.0


def test_a_live_run_counts_until_now() -> None:
    run = attempt(RunEvents(), chips=4).state("running")
    assert usage_of(run, run.now + HOUR).chip_hours == 4.0


def test_a_run_that_has_ended_uses_no_more() -> None:
    run = attempt(RunEvents(), chips=4).after(HOUR).state("stopped")
    assert usage_of(run, run.now + HOUR) == usage_of(run)


events = st.lists(any_event([*STATES, *ENDS], [*NAMES, "state", "attempt_started"]), max_size=40)


@given(events, st.integers(0, 40))
def test_the_usage_never_falls_and_is_the_same_in_two_parts(
    lines: list[dict[str, Any]], cut: int
) -> None:
    account, hours = UsageAccount(), 0.0
    read = [event_of({"hosts": 1, "chips": 2, **line}) for line in lines]
    for event in read:
        account.add(event)
        assert account.until().hours >= hours
        hours = account.until().hours
    whole = account.until()
    assert whole.chip_hours <= 2 * whole.hours + 1e-9
    first = UsageAccount()
    for event in read[:cut]:
        first.add(event)
    second = UsageAccount(**vars(first))
    for event in read[cut:]:
        second.add(event)
    assert second.until() == whole
