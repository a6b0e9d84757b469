"""What is better than a job as it is, given what the compiler said of that."""

from pathlib import Path

import pytest

from launcher.chains.link import prepare
from launcher.cluster.schema import ClusterRef
from launcher.commands.search import advise
from launcher.planning.planner import TrainingLaunch
from trainer.contract.estimates.memory import footprint
from trainer.contract.estimates.search import rank
from trainer.contract.planning.chips import GiB
from trainer.contract.protocol.reports import CompileReport

JOB = """\
name: large
steps: 10
model: {preset: llama3-8b}
data: {source: text, path: "x/*", seq_len: 4096, global_batch: 64}
checkpoint: null
"""


def planned(folder: Path, cluster: str, *overrides: str) -> TrainingLaunch:
    (folder / "job.yaml").write_text(JOB)
    words = ClusterRef(name=cluster)
    launch = prepare(folder / "job.yaml", overrides, words, folder / "runs")
    assert isinstance(launch, TrainingLaunch)
    return launch


def verdict(fits: bool, needed: float | None) -> CompileReport:
    return CompileReport(
        fits=fits,
        hbm_needed_bytes=None if needed is None else int(needed * GiB),
        hbm_available_bytes=95 * GiB,
        memory={},
        compile_s=1.0,
        message="",
    )


def test_plan_that_does_not_fit_names_one_that_does(tmp_path: Path) -> None:
    advice = advise(planned(tmp_path, "v5p-64"), verdict(False, 200))
    assert advice and advice.hbm_estimate_bytes
    assert advice.text.startswith("would fit, by estimate: " + " ".join(advice.overrides))
    better = planned(tmp_path, "v5p-64", *advice.overrides)
    assert footprint(better.job, better.plan).total < 95 * GiB
    assert advice.hbm_estimate_bytes < 95 * GiB


def test_what_the_compiler_needs_more_than_estimated_is_expected_of_all(tmp_path: Path) -> None:
    launch = planned(tmp_path, "v5p-64")
    estimate = footprint(launch.job, launch.plan).total / GiB
    usual, thrice = (advise(launch, verdict(False, n * estimate)) for n in (1, 3))
    assert usual and thrice and usual.overrides != thrice.overrides
    smaller = planned(tmp_path, "v5p-64", *thrice.overrides)
    assert 3 * footprint(smaller.job, smaller.plan).total <= 0.9 * 95 * GiB


def test_where_the_compiler_gives_no_figure_less_is_advised(tmp_path: Path) -> None:
    launch = planned(tmp_path, "v5p-64", "model.remat=dots")
    advice = advise(launch, verdict(False, None))
    assert advice and advice.hbm_estimate_bytes
    assert advice.hbm_estimate_bytes < footprint(launch.job, launch.plan).total


def test_where_nothing_legal_fits_it_is_said(tmp_path: Path) -> None:
    launch = planned(tmp_path, "v5e-8", "model.preset=llama3-70b")
    advice = advise(launch, verdict(False, None))
    assert advice and advice.overrides == ()
    assert "nothing legal on this cluster fits: the least needs about" in advice.text


def test_what_may_fit_but_is_too_close_to_count_on_is_no_advice(tmp_path: Path) -> None:
    launch = planned(tmp_path, "v5p-64")
    ranking = rank(launch.job, launch.plan)
    assert ranking
    times = ranking.own.footprint.total / ranking.least.footprint.total
    close, over = (advise(launch, verdict(False, times * 95 * share)) for share in (0.95, 1.05))
    assert close and close.text.startswith("nothing legal on this cluster surely fits")
    assert over and over.text.startswith("nothing legal on this cluster fits")


def test_plan_that_fits_names_clearly_faster_one(tmp_path: Path) -> None:
    advice = advise(planned(tmp_path, "v5p-64", "model.remat=full"), verdict(True, 30))
    assert advice and advice.text.startswith("faster, by estimate: ")
    assert any(override.startswith("model.remat=") for override in advice.overrides)


def test_what_is_about_as_fast_as_it_can_be_gets_no_advice(tmp_path: Path) -> None:
    assert advise(planned(tmp_path, "v5p-64", "model.remat=dots"), verdict(True, 40)) is None


@pytest.mark.parametrize("cluster", ["local", "v4-8"])
def test_a_simulation_gets_no_advice(tmp_path: Path, cluster: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    words = ClusterRef(name=cluster, simulate=True)
    launch = prepare(tmp_path / "job.yaml", (), words, tmp_path / "runs")
    assert isinstance(launch, TrainingLaunch)
    assert advise(launch, verdict(True, 1)) is None
