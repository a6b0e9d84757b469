"""The timings of an earlier run, the figures of many draws, and what tuning finds."""

import math
from pathlib import Path
from typing import Any

import pytest

from launcher.commands.rehearse import RehearseOptions, rehearsal_result
from launcher.core.errors import UsageError
from launcher.planning.forecast import forecast
from launcher.rehearsal.faults import draw_faults, parse_faults
from launcher.rehearsal.measured import timings_of
from launcher.rehearsal.play import rehearse
from launcher.rehearsal.result import Percentiles, figures
from launcher.rehearsal.storage import SaveSchedule
from launcher.rehearsal.tune import Tuner, optimal_interval_s
from tests.support.rehearsals import TIMINGS, fault, scenario
from tests.support.run_builders import RunEvents
from trainer.contract.config.checkpoint import Checkpoint


def one_attempt(run: RunEvents, *, start_s: float, steps: int, first: int = 1) -> RunEvents:
    run.launcher("attempt_started", hosts=2, chips=2).state("provisioning")
    run.state("running").after(start_s)
    if first > 1:
        run.begin("restore").after(3.0).end("restore")
    run.begin("train").after(1.5)
    for number in range(first, first + steps):
        run.after(0.5).host("step", step=number)
    return run


def test_timings_of_a_run_are_means_of_its_parts() -> None:
    run = one_attempt(RunEvents(), start_s=20.0, steps=10)
    run.begin("save").after(0.2).end("save").after(0.8)
    run.host("checkpoint_saved", step=10, seconds=1.0, blocked_s=0.2)
    one = run.after(0.25).host("step", step=11).after(0.75).ended("crash").next_attempt()
    one_attempt(one, start_s=4.0, steps=10, first=11)
    found = timings_of(one.events, TIMINGS, None)
    assert found is not None
    assert found.step_s == pytest.approx((0.5 * 18 + 1.05) / 19)
    assert found.first_start_s == pytest.approx(20.0)
    assert found.cold_restart_s == pytest.approx(4.0)
    assert found.restore_s == pytest.approx(3.0)
    assert (found.save_s, found.save_blocked_s) == (1.0, 0.2)
    assert found.crash_end_s == pytest.approx(0.75 - found.step_s / 2)
    assert found.notice_s == TIMINGS.notice_s


def test_wait_after_a_loss_shows_when_a_host_is_replaced() -> None:
    run = one_attempt(RunEvents(), start_s=5.0, steps=4).after(1.0).ended("lost")
    run.state("waiting_for_hosts").after(9.0).next_attempt()
    found = timings_of(one_attempt(run, start_s=6.0, steps=4).events, TIMINGS, 15.0)
    assert found is not None
    assert found.loss_end_s == pytest.approx(0.75)
    assert found.replacement_s == pytest.approx(9.75)


def test_run_without_two_steps_in_a_row_has_no_timings() -> None:
    assert timings_of(one_attempt(RunEvents(), start_s=5.0, steps=1).events, TIMINGS, None) is None


def test_percentiles_are_nearest_ranks() -> None:
    found = Percentiles.of([float(n) for n in range(100, 0, -1)])
    assert (found.p5, found.p50, found.p95, found.mean) == (5.0, 50.0, 95.0, 50.5)


def test_draws_that_never_finish_leave_percentiles_unknown() -> None:
    found = Percentiles.of([1.0, 2.0, math.inf, math.inf])
    assert (found.p5, found.p50, found.p95, found.mean) == (1.0, 2.0, None, None)


def test_days_beyond_the_horizon_are_extrapolated() -> None:
    short = scenario(horizon_s=5000.0)
    outcome = rehearse(short, [])
    found = figures([outcome], 2000)
    assert found.days.p50 == pytest.approx(5000.0 / 86400.0 * 2000 / outcome.steps)
    assert found.dollars is not None
    assert found.dollars.p50 == pytest.approx(4 * 2.0 * 24.0 * (found.days.p50 or 0.0))


def test_run_that_gives_up_has_no_days_and_its_reason() -> None:
    gone = scenario(replacement_s=None)
    found = figures([rehearse(gone, [fault(900.0, "host")])], 2000)
    assert (found.days.mean, found.states) == (None, {"failed": 1})
    (reason,) = found.failures
    assert reason.startswith("3 of 4 hosts are alive")


@pytest.mark.parametrize(
    ("policy", "step", "expected"),
    [
        ({"every_steps": 100}, 0, 100),
        ({"every_steps": 100}, 100, 200),
        ({"every_steps": 100}, 950, 990),
        ({"every_minutes": 1.0}, 10, 23),
        ({"every_steps": 20, "every_minutes": 1.0}, 10, 20),
    ],
)
def test_next_save_follows_the_first_rule(policy: dict[str, Any], step: int, expected: int) -> None:
    schedule = SaveSchedule(Checkpoint.model_validate(policy), 990, saved_at_s=0.0)
    assert schedule.next_save(step, now_s=0.0, step_s=5.0) == expected


def test_optimal_interval_is_that_of_young_and_daly() -> None:
    rates = parse_faults("host 1/3h, preemption 9/h")
    assert optimal_interval_s(2.0, rates) == pytest.approx(math.sqrt(2 * 2.0 * 3 * 3600))
    assert optimal_interval_s(2.0, []) == math.inf


def options(**changes: Any) -> RehearseOptions:
    given: dict[str, Any] = {
        "faults": parse_faults("host 1/2h, process 1/h"), "days": 1.0, "draws": 4, "seed": 0,
        "step_time_s": 5.0, "like": None, "replacement_s": 120.0, "tune": False,
        "runs": Path("runs"), "as_json": True,
    }  # fmt: skip
    return RehearseOptions(**{**given, **changes})


def test_tuning_finds_an_interval_that_trials_do_not_beat() -> None:
    rates = parse_faults("process 1/h")
    base = scenario({"steps": 6000}, horizon_s=1e5)
    draws = [draw_faults(rates, base.horizon_s, str(seed)) for seed in range(5)]
    tuner = Tuner(
        base,
        optimal_interval_s(TIMINGS.save_blocked_s, rates),
        lambda one: figures([rehearse(one, faults) for faults in draws], 6000),
    )
    found = tuner.run()
    costs = [trial.cost for trial in found.trials if trial.cost is not None]
    assert found.best.cost == min(costs)
    intervals = {trial.every_steps for trial in found.trials}
    assert min(intervals) < found.best.every_steps < max(intervals)


def test_tuning_prefers_a_spare_to_a_long_wait_for_a_host() -> None:
    long = scenario({"steps": 4000}, {"wait_for_hosts_s": 1e5}, replacement_s=36_000.0)
    faults = [fault(3000.0, "host", hosts=5)]
    tuned = Tuner(long, 500.0, lambda one: figures([rehearse(one, faults)], 4000)).run()
    assert tuned.best.spares == 1


def test_elastic_sizes_are_tried_where_the_job_fits() -> None:
    base = scenario({"steps": 500})
    tuned = Tuner(base, 500.0, lambda one: figures([rehearse(one, [])], 500)).run()
    assert {trial.min_hosts for trial in tuned.trials} == {4, 3, 2}


def test_same_seed_gives_the_same_figures() -> None:
    launch = scenario().launch
    first, second, other = (rehearsal_result(launch, options(seed=s)) for s in (0, 0, 1))
    assert first == second
    assert first.figures != other.figures


def test_cluster_without_a_price_has_no_dollars_and_a_note() -> None:
    launch = scenario(cluster={"provider": {"kind": "local"}}).launch
    found = rehearsal_result(launch, options())
    assert found.figures.dollars is None
    assert any("provider.price_per_chip_hour" in note for note in found.notes)


def test_unknown_step_time_is_an_error() -> None:
    with pytest.raises(UsageError, match="--step-time"):
        rehearsal_result(scenario().launch, options(step_time_s=None))


def test_step_time_of_known_chips_is_the_forecast_with_a_note() -> None:
    cluster = {"accelerator": "v5e-16", "hosts": None, "devices_per_host": None}
    data = {"source": "stdlib", "seq_len": 16, "global_batch": 32}
    launch = scenario({"data": data}, cluster).launch
    found = rehearsal_result(launch, options(step_time_s=None, draws=1, days=0.001))
    expected = forecast(launch)
    assert expected is not None
    assert found.timings.step_s == expected.step_time_s
    assert found.notes[0].startswith("step time:")


def test_tuning_a_job_without_checkpoints_is_an_error() -> None:
    with pytest.raises(UsageError, match="checkpoint: null"):
        rehearsal_result(scenario({"checkpoint": None}).launch, options(tune=True))
