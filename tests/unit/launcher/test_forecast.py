"""The forecast of a run: duration, cost and range, and the prices that it takes."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.chains.link import prepare
from launcher.cluster.prices import US_DOLLARS, Price, list_price, price_of
from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.commands.search import in_order
from launcher.planning.compiler import CompiledCandidate
from launcher.planning.forecast import cost, forecast, unknown
from launcher.planning.planner import TrainingLaunch
from launcher.ui.forecast_view import forecast_rows
from trainer.contract.estimates.forecast import StepForecast
from trainer.contract.estimates.search import rank
from trainer.contract.protocol.reports import CompileReport, StepSchedule

JOB = """\
name: large
steps: 1000
model: {preset: llama3-8b, remat: full}
data: {source: text, path: "x/*", seq_len: 8192, global_batch: 512}
eval: null
sample: null
checkpoint: null
"""
SCHEDULE = StepSchedule(2.0, {"matrix products": 1.5, "attention": 0.5}, {"core": 2.0})


def planned(folder: Path, cluster: str, **ref: Any) -> TrainingLaunch:
    (folder / "job.yaml").write_text(JOB)
    words = ClusterRef(name=cluster, **ref)
    launch = prepare(folder / "job.yaml", (), words, folder / "runs")
    assert isinstance(launch, TrainingLaunch)
    return launch


def cluster_file(folder: Path, provider: str) -> str:
    path = folder / "cluster.yaml"
    path.write_text(f"{{accelerator: v6e-256, provider: {{{provider}}}}}")
    return str(path)


def test_compiled_schedule_gives_rates_duration_and_cost(tmp_path: Path) -> None:
    found = forecast(planned(tmp_path, "v6e-256"), SCHEDULE)
    assert found and found.basis == "compiled schedule"
    assert found.step_time_s == 2.0 == sum(found.parts.values())
    assert found.tokens_per_s_per_device == 2 * 8192 / 2.0
    assert found.duration_s == 2000
    assert found.cost and found.cost.dollars == pytest.approx(256 * 2.70 * 2000 / 3600)


def test_plan_alone_gives_a_calibrated_estimate_with_a_wider_range(tmp_path: Path) -> None:
    launch = planned(tmp_path, "v6e-256")
    compiled, estimated = forecast(launch, SCHEDULE), forecast(launch)
    assert compiled and estimated and estimated.basis == "calibrated estimate"

    def width(found: Any) -> float:
        return (found.range.high - found.range.low) / found.step_time_s

    assert width(compiled) < width(estimated)


def test_mfu_of_a_step_at_its_bound_is_that_of_the_bound(tmp_path: Path) -> None:
    launch = planned(tmp_path, "v6e-256")
    assert launch.bounds
    found = forecast(launch, StepSchedule(launch.bounds.step_s, {"a": launch.bounds.step_s}, {}))
    assert found and found.mfu == pytest.approx(launch.bounds.mfu)


def test_simulated_devices_have_no_forecast_and_say_why(tmp_path: Path) -> None:
    launch = planned(tmp_path, "v6e-256", simulate=True)
    assert forecast(launch) is None
    assert unknown(launch) == "none: the speed of CPU devices is not known"


def test_gpus_without_a_price_have_no_cost(tmp_path: Path) -> None:
    found = forecast(planned(tmp_path, "h100-64"))
    assert found and found.cost is None
    assert not found.validated


@given(st.floats(0.01, 100), st.floats(0.01, 1e6), st.floats(0.01, 100))
def test_cost_is_within_its_range(seconds: float, chip_hours: float, price: float) -> None:
    step = StepForecast({"a": seconds}, "calibrated estimate", is_validated=True)
    found = cost(step, chip_hours, Price(dollars_per_chip_hour=price, source=""))
    assert found and found.low < found.dollars < found.high
    assert found.dollars == pytest.approx(chip_hours * price)
    assert found.high / found.dollars == pytest.approx(step.high_s / step.step_s)


@pytest.mark.parametrize(
    ("provider", "dollars", "source"),
    [
        ("kind: gcp", 2.70, "on demand in us-central1"),
        ("kind: gcp, zone: asia-northeast1-b", 3.24, "on demand in asia-northeast1"),
        ("kind: gcp, zone: us-east5-a, spot: true", 1.215, "spot in us-east5"),
        ("kind: gcp, zone: southamerica-west1-a, spot: true", 2.70, "on demand in southamerica"),
        ("kind: gcp, zone: us-east5-a, price_per_chip_hour: 0.5", 0.5, "provider.price_per_chip"),
        ("kind: attach, address: 'auto'", 2.70, "on demand in us-central1"),
    ],
)
def test_price_is_that_of_the_file_or_the_region(
    tmp_path: Path, provider: str, dollars: float, source: str
) -> None:
    found = price_of(find_cluster(cluster_file(tmp_path, provider)).value)
    assert found and found.dollars_per_chip_hour == dollars
    assert found.source.startswith(source)


def test_price_of_an_unlisted_generation_is_not_known() -> None:
    assert list_price("v7x", zone=None, spot=False) is None


@pytest.mark.parametrize("generation", ["v4", "v5e", "v5p", "v6e"])
def test_spot_is_never_dearer_than_on_demand(generation: str) -> None:
    for on_demand, spot in US_DOLLARS[generation].values():
        assert spot is None or spot < on_demand


def test_table_states_time_range_parts_cost_and_basis(tmp_path: Path) -> None:
    launch = planned(tmp_path, "v6e-256")
    titles, texts = zip(*forecast_rows(launch, SCHEDULE), strict=True)
    assert titles == ("forecast", "", "", "")
    assert texts[0].startswith("2 s a step (1.76 to 2.3 s), 8,192 tokens/s per device, MFU ")
    assert texts[1] == "matrix products 75.0%, attention 25.0%"
    assert "1,000 steps in 33:20" in texts[2] and "at $2.70 per chip-hour" in texts[2]
    assert texts[3] == "by the compiled schedule"
    assert "not validated" in forecast_rows(planned(tmp_path, "h100-64"))[-1][1]


def test_alternatives_that_fit_are_in_the_order_of_their_schedules(tmp_path: Path) -> None:
    launch = planned(tmp_path, "v6e-256")
    ranking = rank(launch.job, launch.plan)
    assert ranking

    def compiled(place: int, seconds: float) -> CompiledCandidate:
        schedule = StepSchedule(seconds, {"a": seconds}, {})
        report = CompileReport(True, 1, 2, {}, 1.0, "", schedule=schedule)
        return CompiledCandidate(ranking.fitting[place], report)

    slow, fast = compiled(0, 3.0), compiled(1, 2.0)
    assert in_order(ranking, [slow, fast])[:2] == [fast, slow]
