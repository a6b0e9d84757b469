"""The wait for a condition: when it ends, and what it returns."""

from itertools import count

import pytest

from launcher.core import wait
from launcher.core.wait import wait_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses so far; time passes only in them."""
    pauses: list[float] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return sum(pauses)

        @staticmethod
        def sleep(seconds: float) -> None:
            pauses.append(seconds)

    monkeypatch.setattr(wait, "time", Clock)
    return pauses


def test_condition_that_holds_is_not_waited_for(clock: list[float]) -> None:
    assert wait_until(lambda: True, 0.0, poll_interval_s=1.0)
    assert not clock


def test_condition_is_polled_until_it_holds(clock: list[float]) -> None:
    polls = count(1)
    assert wait_until(lambda: next(polls) == 4, poll_interval_s=0.5)
    assert clock == [0.5] * 3


def test_wait_ends_at_the_timeout(clock: list[float]) -> None:
    waited: list[float] = []
    assert not wait_until(lambda: False, 2.0, poll_interval_s=1.0, on_wait=waited.append)
    assert clock == [1.0, 1.0]
    assert waited == [0.0, 1.0]


def test_condition_is_checked_even_without_any_time(clock: list[float]) -> None:
    polls = count()
    assert not wait_until(lambda: next(polls) < 0, 0.0, poll_interval_s=1.0)
    assert next(polls) == 1
    assert not clock
