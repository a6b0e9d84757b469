"""A budget: what it is compared with before a run and during one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cluster.prices import chips, price_per_chip_hour
from launcher.cluster.schema import find_cluster
from launcher.core.formatting import format_seconds
from launcher.core.usage import Usage
from launcher.planning import budget
from tests.support.launch_plans import JOB, planned
from tests.support.worlds import cpu_world, slice_world
from trainer.contract.config.budget import Budget
from trainer.contract.config.loader import ConfigError

CLUSTER = "accelerator: cpu\nhosts: 2\ndevices_per_host: 2\nprovider: {kind: local%s}\n"
GCP = "accelerator: v4-32\nprovider: {kind: gcp%s}\n"
amounts = st.floats(0.01, 1e5)


def cluster_file(folder: Path, text: str, price: str = "") -> str:
    path = folder / "cluster.yaml"
    path.write_text(text % price)
    return str(path)


@pytest.mark.parametrize(
    ("text", "price", "expected"),
    [
        (CLUSTER, "", None),
        (CLUSTER, ", price_per_chip_hour: 0.5", 0.5),
        (GCP, "", 3.22),
        (GCP, ", price_per_chip_hour: 2", 2.0),
    ],
)
def test_a_price_is_that_of_the_file_or_the_list_price_of_rented_slices(
    tmp_path: Path, text: str, price: str, expected: float | None
) -> None:
    cluster = find_cluster(cluster_file(tmp_path, text, price)).value
    assert price_per_chip_hour(cluster) == expected


def test_chips_are_counted_and_not_the_devices_of_a_chip() -> None:
    assert chips(slice_world("v3-32", slices=2)) == 32
    assert chips(slice_world("v4-32", slices=1)) == 16
    assert chips(cpu_world(hosts=2, devices_per_host=4)) == 8


def test_a_limit_in_dollars_needs_a_price(tmp_path: Path) -> None:
    cluster = cluster_file(tmp_path, CLUSTER)
    with pytest.raises(ConfigError) as error:
        planned(tmp_path / "job.yaml", JOB + "budget: {dollars: 5}\n", cluster)
    assert error.value.lines == [
        f"{tmp_path}/job.yaml:5: budget.dollars: the price of cpu is not known. "
        "Set provider.price_per_chip_hour in the cluster file, or limit chip_hours instead"
    ]


def test_a_budget_below_the_bound_of_all_steps_is_a_warning(tmp_path: Path) -> None:
    text = JOB.replace("steps: 2", "steps: 1000000000").replace("batch: 4", "batch: 16")
    launch = planned(tmp_path / "job.yaml", text + "budget: {chip_hours: 0.01}\n", "tpu-v4-32")
    (warning,) = [text for text in launch.plan.warnings if text.startswith("budget")]
    least = budget.forecast(launch)
    assert least is not None and least.chip_hours == 16 * least.hours > 0.01
    assert (
        f"1,000,000,000 steps take at least {least.chip_hours:,.4g} chip-hours of 0.01" in warning
    )
    assert f"stop at step {int(1e7 / least.chip_hours):,} or before" in warning


@pytest.mark.parametrize(("price", "cost"), [("", 3.22), (", price_per_chip_hour: 2", 2.0)])
def test_a_forecast_has_the_time_the_chip_hours_and_the_cost(
    tmp_path: Path, price: str, cost: float
) -> None:
    text = JOB.replace("steps: 2", "steps: 1000000000").replace("batch: 4", "batch: 16")
    launch = planned(tmp_path / "job.yaml", text, cluster_file(tmp_path, GCP, price))
    least = budget.forecast(launch)
    assert least is not None
    assert budget.describe_forecast(launch) == (
        f"1,000,000,000 steps take at least {format_seconds(least.hours * 3600)}, "
        f"{least.chip_hours:,.2f} chip-hours, ${least.chip_hours * cost:,.2f}"
    )


def test_a_forecast_of_a_resumed_run_counts_the_steps_that_are_left(tmp_path: Path) -> None:
    text = JOB.replace("steps: 2", "steps: 1000").replace("batch: 4", "batch: 16")
    launch = planned(tmp_path / "job.yaml", text, cluster_file(tmp_path, GCP))
    whole, rest = budget.forecast(launch), budget.forecast(launch, done=250)
    assert whole and rest and rest.hours == pytest.approx(0.75 * whole.hours)
    assert budget.describe_forecast(launch, done=250).startswith("750 more steps take at least")


def test_a_forecast_without_a_price_has_no_cost(tmp_path: Path) -> None:
    text = JOB.replace("batch: 4", "batch: 16")
    cluster = cluster_file(tmp_path, GCP.replace("gcp", "slurm"))
    described = budget.describe_forecast(planned(tmp_path / "job.yaml", text, cluster))
    assert described.startswith("2 steps take at least") and "$" not in described


def test_hosts_of_unknown_speed_have_no_forecast(tmp_path: Path) -> None:
    cluster = cluster_file(tmp_path, CLUSTER, ", price_per_chip_hour: 2")
    assert budget.describe_forecast(planned(tmp_path / "job.yaml", JOB, cluster)) == ""


def test_a_budget_that_may_be_enough_is_no_warning(tmp_path: Path) -> None:
    text = JOB.replace("batch: 4", "batch: 16") + "budget: {chip_hours: 1}\n"
    launch = planned(tmp_path / "job.yaml", text, "tpu-v4-32")
    assert not [text for text in launch.plan.warnings if text.startswith("budget")]


def test_a_budget_says_what_is_used_up_and_how_to_raise_it() -> None:
    of_job, used = Budget(hours=12, chip_hours=200, dollars=400), Usage(12.01, 192, 402)
    assert budget.spent(of_job, used) == (
        "the budget is used up: 12.01 h of 12 h, $402.00 of $400.00 (budget.hours, budget.dollars)"
    )
    assert budget.raised(of_job, used) == "budget.hours=24 budget.dollars=800"


def test_nothing_is_used_up_before_a_limit_or_without_a_budget() -> None:
    assert budget.spent(Budget(hours=12), Usage(11.99, 1e9, 1e9)) == ""
    assert budget.spent(None, Usage(1e9, 1e9, 1e9)) == ""


@given(st.builds(Budget, hours=amounts, chip_hours=amounts), st.builds(Usage, amounts, amounts))
def test_a_budget_that_is_raised_as_advised_is_not_used_up(of_job: Budget, used: Usage) -> None:
    advised = dict(word.split("=") for word in budget.raised(of_job, used).split())
    values = {key.removeprefix("budget."): float(value) for key, value in advised.items()}
    assert values.keys() == set(budget.exceeded(of_job, used))
    for key, value in values.items():
        assert getattr(used, key) < value * (1 + 1e-9)
