"""What happens to a rehearsed run: the decisions are those of the real control plane."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.core.states import RunState
from launcher.gang.monitor import HANG_GRACE_S
from launcher.health.lost_hosts import SILENCE_S
from launcher.planning.planner import FAILURE_GRACE_S
from launcher.rehearsal.faults import Fault, FaultKind, FaultRate, draw_faults
from launcher.rehearsal.play import Outcome, rehearse
from tests.support.rehearsals import HOUR_S, JOB, TIMINGS, fault, played, scenario

STEPS, EVERY = JOB["steps"], JOB["checkpoint"]["every_steps"]
NO_FAULTS_S = (
    TIMINGS.first_start_s
    + TIMINGS.first_step_s
    + STEPS * TIMINGS.step_s
    + STEPS // EVERY * TIMINGS.save_blocked_s
    + TIMINGS.save_s
    - TIMINGS.save_blocked_s  # the last save
    + TIMINGS.stop_s
)
PLAIN = scenario()
QUICK_TO_START = scenario(first_start_s=TIMINGS.restart_s)
"""A first start is no longer than later ones."""
KINDS = st.sampled_from(list(FaultKind))
FAULTS = st.lists(
    st.builds(
        Fault,
        st.floats(0.0, 1.2 * NO_FAULTS_S),
        KINDS,
        st.floats(0.0, 1.0, exclude_max=True),
    ),
    max_size=12,
).map(sorted)


def test_without_faults_time_is_steps_saves_and_start() -> None:
    outcome = rehearse(PLAIN, [])
    assert outcome.state is RunState.FINISHED
    assert outcome.wall_s == pytest.approx(NO_FAULTS_S)
    steps_s = STEPS * TIMINGS.step_s + TIMINGS.first_step_s
    assert outcome.goodput == pytest.approx(steps_s / NO_FAULTS_S)
    assert (outcome.steps, outcome.attempts) == (STEPS, 1)


@settings(deadline=None, max_examples=60)
@given(FAULTS)
def test_parts_add_up_to_the_time_and_are_never_negative(faults: list[Fault]) -> None:
    outcome = rehearse(PLAIN, faults)
    parts = asdict(outcome.parts)
    assert sum(parts.values()) == pytest.approx(outcome.wall_s, abs=1e-6)
    assert all(seconds >= -1e-6 for seconds in parts.values()), parts


@settings(deadline=None, max_examples=30)
@given(FAULTS)
def test_finished_runs_counted_each_step_once(faults: list[Fault]) -> None:
    outcome = rehearse(PLAIN, faults)
    if outcome.state is RunState.FINISHED:
        most_s = STEPS * TIMINGS.step_s + outcome.attempts * TIMINGS.first_step_s
        assert STEPS * TIMINGS.step_s <= outcome.parts.steps + 1e-6
        assert outcome.parts.steps <= most_s + 1e-6


@settings(deadline=None, max_examples=30)
@given(FAULTS)
def test_no_fault_makes_a_run_faster(faults: list[Fault]) -> None:
    outcome = rehearse(QUICK_TO_START, faults)
    if outcome.state is RunState.FINISHED:
        assert outcome.wall_s >= rehearse(QUICK_TO_START, []).wall_s - 1e-6


@settings(deadline=None, max_examples=15)
@given(FAULTS)
def test_the_same_faults_give_the_same_outcome(faults: list[Fault]) -> None:
    assert rehearse(PLAIN, faults) == rehearse(PLAIN, faults)


@pytest.mark.parametrize("kind", FaultKind)
def test_more_faults_lose_more_on_average(kind: FaultKind) -> None:
    long = scenario({"steps": 20_000}, {"wait_for_hosts_s": 7200.0})

    def mean(per_hour: float) -> float:
        rates = [FaultRate(kind=kind, per_hour=per_hour)]
        draws = [draw_faults(rates, long.horizon_s, str(seed)) for seed in range(8)]
        return sum(rehearse(long, faults).goodput for faults in draws) / len(draws)

    few, some, many = mean(0.05), mean(0.5), mean(3.0)
    assert few > some > many


def test_crash_costs_the_steps_since_the_save_and_a_restart() -> None:
    begin_s = TIMINGS.first_start_s + TIMINGS.first_step_s
    at_s = begin_s + 150.5 * TIMINGS.step_s + TIMINGS.save_blocked_s
    outcome = played([fault(at_s, "process")])
    parts = outcome.parts
    assert outcome.attempts == 2
    assert parts.detection == pytest.approx(TIMINGS.crash_end_s)
    assert parts.repeated == pytest.approx(50.5 * TIMINGS.step_s)
    restart_s = TIMINGS.first_start_s + TIMINGS.restart_s + TIMINGS.restore_s + TIMINGS.stop_s
    assert parts.restart == pytest.approx(restart_s)


def test_crash_before_the_commit_repeats_from_the_save_before() -> None:
    begin_s = TIMINGS.first_start_s + TIMINGS.first_step_s
    saved_s = begin_s + 200 * TIMINGS.step_s + TIMINGS.save_blocked_s
    outcome = played([fault(saved_s + TIMINGS.save_s - 1.0, "process")])
    assert outcome.parts.repeated > 100 * TIMINGS.step_s


def test_without_standby_processes_the_restart_is_cold() -> None:
    crash = [fault(900.0, "process")]
    warm = played(crash).parts.restart
    cold = played(crash, job={"retries": {"standby_after_s": None}}).parts.restart
    assert cold - warm == pytest.approx(TIMINGS.cold_restart_s - TIMINGS.restart_s)


def test_silent_host_is_detected_by_its_silence_then_replaced() -> None:
    outcome = played([fault(900.0, "host")])
    noticed_s = outcome.parts.detection - FAILURE_GRACE_S
    assert SILENCE_S < noticed_s <= SILENCE_S + 1.0
    waited_s = (TIMINGS.replacement_s or 0.0) - outcome.parts.detection
    assert outcome.parts.waiting == pytest.approx(waited_s, abs=0.21)


def test_spare_host_takes_the_place_of_a_lost_one_at_once() -> None:
    outcome = played([fault(900.0, "host", hosts=5)], cluster={"spares": 1})
    assert (outcome.parts.waiting, outcome.attempts) == (0.0, 2)
    assert outcome.usage.chip_hours == pytest.approx(5 * outcome.usage.hours)


def test_loss_of_a_spare_costs_no_attempt() -> None:
    assert played([fault(900.0, "host", 4, 5)], cluster={"spares": 1}).attempts == 1


def test_host_that_never_comes_back_ends_a_fixed_run() -> None:
    outcome = played([fault(900.0, "host")], replacement_s=None)
    assert outcome.state is RunState.FAILED
    assert "3 of 4 hosts are alive, at least 4 are needed" in outcome.reason


def test_elastic_run_continues_on_fewer_hosts_and_grows_again() -> None:
    cluster = {"hosts": {"min": 3, "max": 4}, "wait_for_hosts_s": 60.0}
    lost = [fault(900.0, "host")]
    gone = played(lost, cluster=cluster, replacement_s=None)
    back = played(lost, cluster=cluster, replacement_s=1800.0)
    assert (gone.state, gone.attempts) == (RunState.FINISHED, 2)
    assert (back.state, back.attempts) == (RunState.FINISHED, 3)
    assert 1.2 < gone.parts.steps / played([]).parts.steps < 4 / 3
    assert back.wall_s < gone.wall_s


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.5, 4.0), (1.0, 4.0), (5.0, 7.5)])
def test_hang_is_detected_at_the_limit_of_the_real_detector(step_s: float, limit_s: float) -> None:
    outcome = played([fault(900.0, "hang")], step_s=step_s)
    noticed_s = outcome.parts.detection - HANG_GRACE_S
    assert limit_s <= noticed_s <= limit_s + step_s + 1.0


def test_hang_of_the_first_steps_has_their_longer_limit() -> None:
    first_s = TIMINGS.first_start_s + TIMINGS.first_step_s
    outcome = played([fault(first_s + 1.5 * TIMINGS.step_s, "hang")])
    assert outcome.parts.detection > 600.0


def test_announced_preemption_saves_and_repeats_nothing() -> None:
    outcome = played([fault(900.0, "preemption")])
    assert (outcome.attempts, outcome.parts.repeated, outcome.parts.detection) == (2, 0.0, 0.0)


def test_preemption_that_leaves_no_time_to_save_repeats_steps() -> None:
    outcome = played([fault(900.0, "preemption")], save_s=60.0)
    assert outcome.parts.repeated > 0.0


def test_crashes_in_vain_spend_the_retries() -> None:
    crashes = [fault(200.0 + 60.0 * number, "process") for number in range(6)]
    outcome = played(crashes, job={"retries": {"failures": 3}})
    assert outcome.state is RunState.FAILED
    assert "retries.failures: 3 is spent" in outcome.reason


def test_crashes_in_a_row_back_off() -> None:
    crashes = [fault(200.0 + 60.0 * number, "process") for number in range(3)]
    assert played(crashes).parts.waiting == pytest.approx(2.0 + 4.0, abs=0.3)


def test_host_on_which_two_attempts_ended_is_left_for_a_spare() -> None:
    crashes = [fault(900.0, "process"), fault(1800.0, "process")]
    outcome = played([*crashes, fault(2400.0, "host", 1, 5)], cluster={"spares": 1})
    assert outcome.attempts == 3  # the third fault hits an idle host


def test_spent_budget_ends_the_run() -> None:
    outcome = played([], job={"budget": {"dollars": 4.0}})
    assert outcome.state is RunState.OVER_BUDGET
    assert outcome.usage.dollars == pytest.approx(4.0, rel=0.25)


def test_run_beyond_the_horizon_is_still_running() -> None:
    outcome = played([], horizon_s=HOUR_S)
    assert (outcome.state, outcome.wall_s) == (RunState.RUNNING, HOUR_S)
    done_s = HOUR_S - TIMINGS.first_start_s - TIMINGS.first_step_s
    assert outcome.steps == int((done_s - 7 * TIMINGS.save_blocked_s) / TIMINGS.step_s)


def test_lost_host_of_a_slice_takes_the_whole_slice() -> None:
    cluster = {"accelerator": "v5e-16", "hosts": None, "devices_per_host": None, "slices": 2}
    job = {"data": {"source": "stdlib", "seq_len": 16, "global_batch": 32}}
    changes = {"job": job, "cluster": cluster, "horizon_s": 2 * HOUR_S}
    outcome = played([fault(900.0, "host", 5, 8)], **changes)
    assert outcome.attempts == 2
    assert outcome.parts.waiting > 100.0


def test_save_every_minutes_follows_the_step_that_begins_then() -> None:
    outcome: Outcome = played([], job={"checkpoint": {"every_minutes": 10.0}})
    saves = 10_000 // 605  # a save after 600 s and the step that begins then
    assert outcome.parts.saves == pytest.approx(
        saves * TIMINGS.save_blocked_s + TIMINGS.save_s, abs=2 * TIMINGS.save_blocked_s
    )


def test_job_without_checkpoints_begins_again() -> None:
    outcome = rehearse(replace(scenario({"checkpoint": None})), [fault(5000.0, "process")])
    assert outcome.parts.repeated == pytest.approx(
        5000.0 - TIMINGS.first_start_s, abs=TIMINGS.step_s
    )
