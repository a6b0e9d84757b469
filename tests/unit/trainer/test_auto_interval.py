"""The measured cost of saves, and the interval that follows from it and from the time so far."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.checkpoint.auto_interval import REQUEST_STEPS, SAVES, AutoInterval
from trainer.contract.planning.save_interval import SaveInterval, SaveStatistics, choose

STEP_S = 1.0


class Run:
    """Steps of a second on a clock, with saves that block them and slow those beside the write."""

    def __init__(self, known: SaveStatistics | None = None, hosts: int = 1) -> None:
        self.reports: list[tuple[SaveInterval, bool]] = []
        self.now_s = 100.0
        self.auto = AutoInterval(known or SaveStatistics(), hosts, self.now_s, self._report)

    def _report(self, chosen: SaveInterval, is_news: bool) -> None:
        self.reports.append((chosen, is_news))

    def step(self, times: int = 1, seconds: float = STEP_S) -> None:
        for _ in range(times):
            self.now_s += seconds
            self.auto.stepped(seconds)

    def save(self, blocked_s: float, slowed_s: float = 0.0, beside: int = 4, ok: bool = True):
        began_s, self.now_s = self.now_s, self.now_s + blocked_s
        self.auto.saved(began_s, blocked_s)
        self.step(beside, STEP_S + slowed_s / beside)
        self.auto.ended(self.now_s, is_saved=ok)


def test_cost_is_the_blocked_time_and_the_longer_steps_beside_the_write():
    run = Run()
    run.step(20)
    run.save(blocked_s=0.5, slowed_s=1.5)
    run.step(20)
    run.save(blocked_s=0.5, slowed_s=1.5)
    assert run.auto.chosen.cost_s == pytest.approx(2.0)
    assert run.auto.chosen.saves


def test_first_steps_of_an_attempt_do_not_count_as_usual_ones():
    run = Run()
    run.step(2, 50.0)
    run.step(10)
    run.save(blocked_s=0.5, slowed_s=1.0)
    assert run.auto.chosen.cost_s == pytest.approx(1.5)


def test_steps_that_vary_add_no_cost_on_average():
    run = Run()
    run.step(10)
    run.save(blocked_s=0.5)
    for sign in (1, -1) * 4:
        run.save(blocked_s=0.5, slowed_s=sign * 0.4)
        run.step(10)
    assert run.auto.chosen.cost_s == pytest.approx(0.5)


def test_a_failed_save_says_nothing_about_the_cost():
    run = Run()
    run.step(20)
    run.save(blocked_s=30.0, ok=False)
    assert not run.auto.chosen.saves
    assert run.auto.chosen.cost_s == SaveStatistics().cost_s


def test_saves_of_earlier_attempts_count_like_those_of_this_one():
    run = Run(SaveStatistics(blocked_s=9.0, saves=3))
    assert run.auto.chosen.cost_s == 9.0
    run.step(20)
    run.save(blocked_s=50.0)  # the first one of the attempt
    run.save(blocked_s=1.0)
    assert run.auto.chosen.cost_s == pytest.approx((3 * 9.0 + 1.0) / 4)
    assert run.auto.chosen.saves == 4


def test_cost_follows_a_lasting_change():
    run = Run(SaveStatistics(blocked_s=9.0, saves=1000))
    run.step(20)
    for _ in range(5 * SAVES):
        run.save(blocked_s=1.0)
    assert run.auto.chosen.cost_s == pytest.approx(1.0, rel=0.1)
    assert run.auto.chosen.saves == SAVES


def test_first_save_of_a_run_counts_until_the_second_one():
    run = Run()
    run.step(20)
    run.save(blocked_s=5.0)
    assert run.auto.chosen.cost_s == pytest.approx(5.0)
    run.save(blocked_s=1.0)
    assert run.auto.chosen.cost_s == pytest.approx(1.0)


def test_interval_grows_while_no_fault_comes():
    run = Run(SaveStatistics(blocked_s=0.1))
    intervals = []
    for _ in range(5):
        run.step(1, run.auto.seconds)
        run.save(blocked_s=0.1, beside=1)
        intervals.append(run.auto.seconds)
    assert intervals == sorted(set(intervals))


def test_interval_is_as_long_as_a_write_at_least():
    run = Run(SaveStatistics(faults=50, host_s=500.0))
    run.step(20)
    run.save(blocked_s=0.1, beside=40)
    assert run.auto.seconds == pytest.approx(40.1)


def test_a_request_comes_before_the_save_by_the_steps_it_takes():
    run = Run()
    assert run.auto.request_s == run.auto.seconds
    run.step(20, 2.0)
    assert run.auto.request_s == pytest.approx(run.auto.seconds - REQUEST_STEPS * 2.0)


def test_faults_of_earlier_attempts_shorten_the_interval():
    calm, broken = (Run(SaveStatistics(faults=faults, host_s=20_000.0)) for faults in (0, 20))
    assert broken.auto.seconds < calm.auto.seconds / 10


@given(
    costs=st.lists(st.floats(0.01, 20.0), min_size=1, max_size=30),
    faults=st.integers(0, 20),
    host_s=st.floats(0.0, 1e6),
    hosts=st.integers(1, 64),
)
def test_every_save_is_reported_and_large_changes_are_news(costs, faults, host_s, hosts):
    run = Run(SaveStatistics(faults=faults, host_s=host_s), hosts)
    assert run.reports == [(run.auto.chosen, True)]
    last_news_s = run.auto.seconds
    for number, cost_s in enumerate(costs, 2):
        run.step(30)
        run.save(blocked_s=cost_s)
        chosen, is_news = run.reports[-1]
        assert (len(run.reports), chosen) == (number, run.auto.chosen)
        assert is_news == (abs(chosen.seconds - last_news_s) > 0.2 * last_news_s)
        last_news_s = chosen.seconds if is_news else last_news_s


@given(faults=st.integers(0, 100), host_s=st.floats(0.0, 1e7), hosts=st.integers(1, 64))
def test_first_choice_is_that_of_the_plan(faults, host_s, hosts):
    known = SaveStatistics(faults=faults, host_s=host_s, blocked_s=3.0)
    assert Run(known, hosts).auto.chosen == choose(known, hosts)
