"""The public measurements in docs/published, their jobs, and the comparison with forecasts."""

from collections import Counter
from dataclasses import replace
from functools import cache
from hashlib import sha256
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from benchmarks.published import read_output
from benchmarks.published_compare import (
    KINDS,
    Comparison,
    Estimate,
    Forecast,
    Speed,
    compare,
    stored,
    summary,
)
from benchmarks.published_gap import gap
from benchmarks.published_remat import Product, like_for_like, of_launch
from benchmarks.published_rows import (
    BEST,
    LARGE_ERROR,
    MEASUREMENTS,
    Figures,
    Row,
    chosen,
    flops_per_token,
    load,
    plan,
    published_speed,
)
from benchmarks.published_table import PAGE, PARTS, page, part_cell
from launcher.planning.planner import TrainingLaunch
from trainer.contract.estimates.forecast import ATTENTION, MATRIX_PRODUCTS
from trainer.contract.planning import accelerators
from trainer.contract.planning.chips import TPUS

ROWS = load()
FEWEST_ROWS = 16
FEWEST_FORECASTS = 3
TEST_HALF = "54bc45756909"
"""Hash of the names of the rows that only test."""
ROUNDING = 0.01
"""Sources round step times and speeds to a few digits."""
SAME_FLOPS = 0.015
WITH_WINDOWS = {"gpt-oss-120b-v7x-128"}
"""Half of its layers attend to 128 positions, which Slipway's job cannot."""
WITH_TFLOPS = [
    row for row in ROWS if row.published.tflops_per_s_per_chip and row.id not in WITH_WINDOWS
]
FASTER = [row.faster for row in ROWS if row.faster]
every_row = pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])


def result_of(row: Row, tokens_per_s: float) -> Forecast:
    """Returns a result with a forecast speed per JAX device."""
    forecast = {"step_time_s": 2.0, "tokens_per_s_per_device": tokens_per_s, "parts": {}}
    return Forecast(job=row.job_hash, code="0", versions={}, forecast=forecast)


@cache
def launch_of_first_row() -> TrainingLaunch:
    with TemporaryDirectory() as folder:
        return plan(ROWS[0], Path(folder))


@cache
def compared_rows() -> list[Comparison]:
    return list(compare(ROWS, stored()))


def test_row_that_is_behind_or_has_no_forecast_says_what_is_missing() -> None:
    behind = {
        one.row.id
        for one in compared_rows()
        if one.is_ahead is False or (one.result and one.result.problem)
    }
    ahead = {one.row.id for one in compared_rows() if one.is_ahead}
    explained = {row.id for row in ROWS if row.missing}
    assert behind <= explained
    assert not ahead & explained, "remove what is no longer missing"


def test_row_with_a_large_error_has_an_explanation() -> None:
    wrong = {
        one.row.id
        for one in compared_rows()
        if any(abs(error(one) or 0.0) > LARGE_ERROR for error in KINDS.values())
    }
    assert wrong == {row.id for row in ROWS if row.explains}


def test_gap_of_a_row_is_the_sum_of_its_causes() -> None:
    row, step_s = ROWS[0], 8.2
    parts = {MATRIX_PRODUCTS: 6.0, ATTENTION: 2.2}
    speed = {"tokens_per_s_per_device": row.tokens_per_device / step_s}
    forecast = {"step_time_s": step_s, **speed, "parts": parts}
    result = result_of(row, 1.0).model_copy(update={"forecast": forecast})
    (compared,) = compare([row], {row.id: result})
    found = gap(compared)
    assert found is not None
    assert found.measured_s == pytest.approx(row.published.step_time_s, rel=ROUNDING)
    assert found.kernel_s == pytest.approx(0.0), "both have one kernel for all gradients"
    again = like_for_like(parts, launch_of_first_row(), ["mlp_in", "attention"])
    assert found.recomputation_s == pytest.approx(step_s - again)
    causes = found.recomputation_s + found.kernel_s + found.rest_s
    assert found.measured_s + causes == pytest.approx(step_s)


def test_row_that_is_ahead_has_no_gap() -> None:
    row = ROWS[0]
    (compared,) = compare([row], {row.id: result_of(row, 1e6)})
    assert compared.is_ahead
    assert gap(compared) is None


def test_there_are_enough_rows_in_two_equal_halves() -> None:
    halves = Counter(row.half for row in ROWS)
    assert len(ROWS) >= FEWEST_ROWS
    assert abs(halves["calibrate"] - halves["test"]) <= 1


def test_no_row_has_changed_its_half() -> None:
    names = "\n".join(sorted(row.id for row in ROWS if row.half == "test"))
    assert sha256(names.encode()).hexdigest()[:12] == TEST_HALF, "the test half must stay blind"


@pytest.mark.parametrize("part", ["| products |", "## Parts of the forecasts"])
def test_the_page_has_the_parts_of_each_forecast(part: str) -> None:
    assert part in PAGE.read_text()


def test_the_columns_of_every_forecast_add_up_to_its_step() -> None:
    found = [result for result in stored().values() if result.forecast]
    assert len(found) >= FEWEST_FORECASTS
    for result in found:
        sums = [
            sum(seconds for name, seconds in result.parts.items() if name.startswith(start))
            for start in PARTS.values()
        ]
        assert sum(sums) == pytest.approx(result.step_time_s)


def test_collectives_are_shown_by_axis_and_other_parts_as_their_sum() -> None:
    parts = {"collectives over fsdp": 0.25, "collectives over data": 0.5, "waits for copies": 1.0}
    shown = [part_cell(PARTS[name], parts) for name in ("collectives", "copies", "attention")]
    assert shown == ["fsdp 0.250, data 0.500", "1.000", "0.000"]


@pytest.mark.parametrize("half", ["calibrate", "test"])
def test_each_half_has_every_chip_both_sizes_and_experts(half: str) -> None:
    rows = [row for row in ROWS if row.half == half]
    assert {row.chip for row in rows} == {"v5e", "v5p", "v6e", "v7x"}
    assert {"405B" in row.model for row in rows} == {True, False}
    assert any("model.moe" in " ".join(row.job) or "mixtral" in row.id for row in rows)


@every_row
def test_job_of_row_is_legal_and_has_its_batch_and_length(row: Row, tmp_path: Path) -> None:
    launch = plan(row, tmp_path)
    devices = row.chips * row.devices_per_chip
    assert launch.plan.world.devices == devices
    assert launch.job.data.global_batch == pytest.approx(row.batch_per_device * devices)
    assert launch.job.data.seq_len == row.seq_len


@pytest.mark.parametrize("row", FASTER, ids=[row.id for row in FASTER])
def test_fastest_job_is_legal_and_has_the_same_model_and_batch(row: Row, tmp_path: Path) -> None:
    (closest,) = chosen(ROWS, [row.id.removesuffix(BEST)])
    jobs = [plan(one, tmp_path).job for one in (closest, row)]
    kept = [
        (job.decoder.model_copy(update={"remat": "none"}), job.data.global_batch, job.data.seq_len)
        for job in jobs
    ]
    assert kept[0] == kept[1]
    assert jobs[0] != jobs[1]


@every_row
def test_chips_and_slices_of_row_are_those_of_its_accelerator(row: Row) -> None:
    made = accelerators.parse(row.accelerator)
    assert (row.chip, row.chips) == (made.generation, made.chips * row.slices)


@every_row
def test_published_figures_of_row_agree_with_each_other(row: Row) -> None:
    figures = row.published
    tokens_per_chip = row.tokens_per_device * row.devices_per_chip
    if figures.step_time_s and figures.tokens_per_s_per_chip:
        tokens = figures.step_time_s * figures.tokens_per_s_per_chip
        assert tokens == pytest.approx(tokens_per_chip, rel=ROUNDING)
    if figures.mfu and figures.tflops_per_s_per_chip:
        peak = TPUS[row.chip].peak_bf16_flops
        share = figures.tflops_per_s_per_chip * 1e12 / peak
        assert share == pytest.approx(figures.mfu, rel=ROUNDING)


@every_row
def test_published_speed_of_row_is_below_the_peak_of_its_chips(row: Row, tmp_path: Path) -> None:
    launch = plan(row, tmp_path)
    best = launch.bounds
    assert best is not None
    speed = published_speed(row, launch).tokens_per_s_per_chip * row.chips
    assert speed * best.model_flops / best.tokens < best.peak_flops


@pytest.mark.parametrize("row", WITH_TFLOPS, ids=[row.id for row in WITH_TFLOPS])
def test_tflops_of_row_are_those_of_its_job(row: Row, tmp_path: Path) -> None:
    """Compares FLOPs per token, whether the source counts attention by halves or as a whole."""
    launch = plan(row, tmp_path)
    best, model = launch.bounds, launch.job.decoder
    assert best is not None
    causal = best.model_flops / best.tokens
    whole = causal + 6 * model.layers * model.heads * model.head_dim * row.seq_len
    speed = published_speed(row, launch).tokens_per_s_per_chip
    assert row.published.tflops_per_s_per_chip
    theirs = row.published.tflops_per_s_per_chip * 1e12 / speed
    assert min(abs(theirs / causal - 1), abs(theirs / whole - 1)) < SAME_FLOPS


@every_row
def test_row_with_tflops_alone_says_how_it_counts_attention(row: Row) -> None:
    figures = row.published
    is_derived = not (figures.step_time_s or figures.tokens_per_s_per_chip)
    assert is_derived == (row.attention_flops is not None)


def test_figures_without_a_speed_are_refused() -> None:
    with pytest.raises(ValidationError, match="needs a step time"):
        Figures(mfu=0.5)


def test_unknown_row_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=f"no row is named llama9.*{ROWS[0].id}"):
        chosen(ROWS, ["llama9"])


def test_chosen_rows_are_in_the_order_asked_for_and_all_without_ids() -> None:
    last, first = ROWS[-1], ROWS[0]
    assert chosen(ROWS, [last.id, first.id]) == [last, first]
    assert len(chosen(ROWS, [])) == len(ROWS) + len(FASTER)


@given(st.floats(0.5, 2), st.floats(0.5, 2))
def test_row_is_ahead_if_the_forecast_of_either_job_is(closest: float, fastest: float) -> None:
    row, speed = FASTER[0], Speed(1.0, is_derived=False)
    slow, fast = (
        Comparison(row, speed, None, result_of(row, factor / row.devices_per_chip))
        for factor in (closest, fastest)
    )
    assert replace(slow, best=fast).is_ahead == (max(closest, fastest) > 1)
    assert replace(slow, result=None, best=None).is_ahead is None


def test_id_that_occurs_twice_is_an_error(tmp_path: Path) -> None:
    text = MEASUREMENTS.read_text(encoding="utf-8")
    (tmp_path / "rows.yaml").write_text(text + text[text.index("- id:") :], encoding="utf-8")
    with pytest.raises(ValueError, match="occur twice"):
        load(tmp_path / "rows.yaml")


def test_causal_attention_counts_half_of_the_flops_of_attention(tmp_path: Path) -> None:
    (row,) = chosen(ROWS, ["gpt-32b-v5p-128"])
    launch = plan(row, tmp_path)
    without = 6 * sum(prod(array.shape) for array in launch.plan.parameters)
    as_whole = row.model_copy(update={"attention_flops": "whole"})
    causal, whole = (flops_per_token(each, launch) - without for each in (row, as_whole))
    assert causal == whole / 2 == 6 * 32 * 32 * 256 * 2048


@given(st.sampled_from(ROWS), st.floats(0.5, 2))
def test_error_is_forecast_over_published_speed(row: Row, factor: float) -> None:
    published = Speed(1000.0, is_derived=False)
    result = result_of(row, 1000 * factor / row.devices_per_chip)
    assert Comparison(row, published, None, result).error == pytest.approx(factor - 1)


def test_result_of_another_job_counts_as_not_run() -> None:
    row = ROWS[0]
    result = result_of(row, 1.0).model_copy(update={"job": "another"})
    (compared,) = compare([row], {row.id: result})
    assert (compared.error, compared.missing) == (None, "not run yet")


def test_row_that_failed_is_listed_with_its_reason() -> None:
    row = ROWS[0]
    result = Forecast(job=row.job_hash, code="0", versions={}, problem="does not fit: 40 GiB")
    assert "| does not fit: 40 GiB | not run yet | - |" in page([row], {row.id: result})


def test_summary_has_median_and_largest_error_of_each_half() -> None:
    rows = [row for row in ROWS if row.half == "test"][:3]
    published = Speed(100.0, is_derived=False)
    compared = [
        Comparison(
            row, published, Estimate(50.0, 80.0), result_of(row, speed / row.devices_per_chip)
        )
        for row, speed in zip(rows, (110, 95, 130), strict=True)
    ]
    lines = dict(line.split(": ") for line in summary(compared))
    assert lines["forecast, calibrate"] == "0 of 0 rows, median error -, largest -"
    assert lines["forecast, test"] == "3 of 3 rows, median error 10.0%, largest 30.0%"
    assert lines["estimate, test"] == "3 of 3 rows, median error 50.0%, largest 50.0%"
    assert lines["estimate, like for like, test"].endswith("median error 20.0%, largest 20.0%")


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_step_that_recomputes_the_same_takes_the_same_time(remat: str, tmp_path: Path) -> None:
    row = ROWS[0].model_copy(update={"job": (*ROWS[0].job, f"model.remat={remat}")})
    parts = {MATRIX_PRODUCTS: 3.0, ATTENTION: 2.0, "other fusions": 1.0}
    launch = plan(row, tmp_path)
    assert like_for_like(parts, launch, of_launch(launch)) == pytest.approx(6.0)


def test_step_without_recomputation_saves_its_share_of_a_layers_products(tmp_path: Path) -> None:
    """The output layer and the product out of the MLP are never recomputed.

    Attention saves two of nine products.
    """
    launch = plan(ROWS[0], tmp_path)
    width, hidden, heads, vocabulary = 4096, 14336, 4096 + 2 * 1024, 128_256
    layer = 32 * (width * heads + width * width + 3 * width * hidden)
    last, output = 32 * width * hidden, vocabulary * width
    saved = (layer - last) / (4 * layer - last + 3 * output)
    alone = like_for_like({MATRIX_PRODUCTS: 1.0}, launch, [])
    assert alone == pytest.approx(1 - saved, rel=1e-3)
    assert like_for_like({ATTENTION: 9.0}, launch, []) == pytest.approx(7.0)
    assert like_for_like({ATTENTION: 9.0}, launch, [], is_fused=False) == pytest.approx(9.0)


@given(st.sets(st.sampled_from(get_args(Product))), st.sampled_from(get_args(Product)))
def test_more_recomputation_never_makes_a_step_faster(some: set[Product], one: Product) -> None:
    parts = {MATRIX_PRODUCTS: 3.0, ATTENTION: 2.0, "other fusions": 1.0}
    launch = launch_of_first_row()
    assert like_for_like(parts, launch, some) <= like_for_like(parts, launch, {*some, one})


def test_nested_parts_have_the_names_of_their_path() -> None:
    parts = {"matmul": 1.5, "exposed": {"fsdp": 0.25, "data": 0.5}, "note": "text"}
    result = Forecast(job="1", code="0", versions={}, forecast={"parts": parts})
    assert result.parts == {"matmul": 1.5, "exposed.fsdp": 0.25, "exposed.data": 0.5}


def test_page_is_fresh() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(ROWS, stored()), "run: uv run python -m benchmarks.published_table"


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("", "not compiled: unknown key"),
        ('{"fits": false, "hbm_needed_bytes": 42949672960, "hbm_available_bytes": 33554432000}',
         "does not fit: 40.0 of 31.25 GiB"),
        ('{"fits": true}', "the plan has no forecast"),
    ],
)  # fmt: skip
def test_row_without_forecast_has_the_reason(output: str, problem: str) -> None:
    errors = 'a warning\n{"exit_code": 2, "message": "unknown key\\nmore"}\n'
    assert read_output(output, errors)["problem"] == problem


@pytest.mark.parametrize("errors", ["", "Killed\n"])
def test_command_without_json_error_has_its_last_line(errors: str) -> None:
    reason = errors.strip() or "ended without a message"
    assert read_output("", errors) == {"problem": f"not compiled: {reason}"}


def test_forecast_is_read_from_the_output_of_plan() -> None:
    output = '{"fits": true, "forecast": {"step_time_s": 2.5}}'
    assert read_output(output, "") == {"forecast": {"step_time_s": 2.5}}
