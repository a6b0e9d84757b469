"""The charts of a report: which lines they have, and how speed is distributed."""

from typing import Any

import pytest

from launcher.report.charts import LEARNING, SPEED, Chart, charts, of_tasks, points, speed_rows
from launcher.runs.run_record import RunRecord
from tests.support.llama_jobs import CORPUS, found, job_of, world_of
from tests.support.run_records import record_of
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.events import SpikeEvent


def steps(count: int, **values: float) -> list[dict[str, Any]]:
    return [{"step": step, "attempt": 1, **values} for step in range(1, count + 1)]


def llama() -> RunRecord:
    """Five steps of two seconds on a real TPU."""
    job, world = job_of(64), world_of("v5p-64")
    metrics = steps(5, step_time_s=2.0, tokens_per_s=131_072.0, mfu=0.45)
    return record_of(job=job, plans={1: resolve(job, world, CORPUS)}, metrics=metrics)


def titles(charts: list[Chart]) -> list[str]:
    return [chart.spec.title for chart in charts]


def test_charts_without_data_are_left_out() -> None:
    record = record_of(metrics=steps(2, loss=1.0))
    assert titles(charts(LEARNING, [record])) == ["Loss"]
    assert charts(SPEED, [record]) == []


def test_training_and_evaluation_share_the_chart_of_the_loss() -> None:
    metrics = [*steps(3, loss=2.0), {"step": 3, "attempt": 1, "eval_loss": 2.5}]
    (chart,) = charts(LEARNING, [record_of(metrics=metrics)])
    assert [(line.label, line.kind) for line in chart.lines] == [
        ("training", "line"), ("evaluation", "points")
    ]  # fmt: skip


def test_each_metric_of_tasks_has_a_chart_with_a_line_for_each_task() -> None:
    metrics = [
        {"step": 2, "attempt": 1, "tasks": {"arc/acc": 0.25, "arc/acc_norm": 0.5, "qa/acc": 0.75}},
        {"step": 4, "attempt": 1, "tasks": {"arc/acc": 0.5, "arc/acc_norm": 0.5, "qa/acc": 1.0}},
    ]
    records = [record_of(metrics=[*steps(4, loss=2.0), *metrics])]
    shown = {
        (chart.spec.title, line.label, line.kind): (line.curve.steps, line.curve.values)
        for chart in charts(of_tasks(records), records)
        for line in chart.lines
    }
    assert shown == {
        ("Tasks: acc", "arc", "points"): ([2, 4], [0.25, 0.5]),
        ("Tasks: acc", "qa", "points"): ([2, 4], [0.75, 1.0]),
        ("Tasks: acc_norm", "arc", "points"): ([2, 4], [0.5, 0.5]),
    }


def test_spikes_are_marked_where_the_curve_no_longer_has_them() -> None:
    spikes = [SpikeEvent(step=9, loss=8.0), SpikeEvent(step=4, loss=7.0, grad_norm=90.0)]
    record = record_of(metrics=steps(3, loss=2.0, grad_norm=1.0), spikes=spikes)
    marks = {
        chart.spec.title: (line.curve.steps, line.curve.values)
        for chart in charts(LEARNING, [record])
        for line in chart.lines
        if line.kind == "spikes"
    }
    assert marks == {"Loss": ([4, 9], [7.0, 8.0]), "Gradient norm": ([4], [90.0])}


def test_speed_has_the_bounds_of_the_plan_over_all_steps() -> None:
    best = found(job_of(64), world_of("v5p-64"))
    levels = {
        chart.spec.title: line.curve.values
        for chart in charts(SPEED, [llama()])
        for line in chart.lines
        if line.kind == "bound"
    }
    assert levels == {
        "Step time": [best.step_s] * 2,
        "Throughput": [best.tokens_per_s] * 2,
        "MFU": [best.mfu] * 2,
    }


def test_simulated_devices_have_no_bound() -> None:
    job = job_of(64)
    world = world_of("v5p-64").model_copy(update={"simulated": True})
    plans = {1: resolve(job, world, CORPUS)}
    record = record_of(job=job, plans=plans, metrics=steps(2, step_time_s=1.0))
    assert [line.kind for line in charts(SPEED, [record])[0].lines] == ["line"]
    assert speed_rows(record)[0].bound is None


def test_lines_of_several_runs_have_the_names_of_the_runs() -> None:
    records = [record_of(name=name, metrics=steps(2, grad_norm=1.0)) for name in ("one", "two")]
    (chart,) = charts(LEARNING, records)
    assert [(line.run, line.label) for line in chart.lines] == [(0, "one"), (1, "two")]


def test_percentiles_are_of_times_from_above_and_of_rates_from_below() -> None:
    metrics = [
        {"step": step, "attempt": 1, "step_time_s": step / 100, "tokens_per_s": 10.0 * step}
        for step in range(1, 102)
    ]
    time, rate = speed_rows(record_of(metrics=metrics))
    assert (time.median, time.of_90, time.of_99, time.worst) == pytest.approx(
        (0.51, 0.91, 1.0, 1.01)
    )
    assert (rate.median, rate.of_90, rate.of_99, rate.worst) == pytest.approx((510, 110, 20, 10))


def test_chart_with_zeros_has_no_logarithmic_axis() -> None:
    of_zeros = record_of(metrics=steps(2, grad_norm=0.0))
    of_ones = record_of(metrics=steps(2, grad_norm=1.0))
    logs = [charts(LEARNING, [record])[0].as_json()["log"] for record in (of_zeros, of_ones)]
    assert logs == [False, True]


def test_chart_is_described_in_words() -> None:
    (chart,) = charts(LEARNING, [record_of(metrics=steps(3, loss=2.5))])
    assert chart.description == (
        "training: 2.5 at step 1, 2.5 at step 3, lowest 2.5, highest 2.5"
    )  # fmt: skip


@pytest.mark.parametrize("runs", [1, 2, 10, 100])
def test_more_runs_have_fewer_points_each(runs: int) -> None:
    assert 20 <= points(runs) <= 2000
    assert runs * points(runs) <= 5000
