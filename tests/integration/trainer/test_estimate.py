"""The TPU compiler's verdict on a job, and what `launch plan --compile` makes of it.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.analysis.forecast.timeline import CORE
from trainer.contract.estimates.forecast import (
    ATTENTION,
    COLLECTIVES,
    HOST,
    MATRIX_PRODUCTS,
    OTHER_FUSIONS,
)
from trainer.contract.planning.chips import GiB

pytestmark = pytest.mark.tpu_compiler
# 67 million parameters a layer; with moments and gradients 1 GiB.
JOB = """\
name: billion
steps: 10
model: {layers: 13, d_model: 2048, heads: 16, kv_heads: 16, d_ff: 8192}
data: {source: text, path: "x/*", seq_len: 128, global_batch: 1}
eval: null
sample: null
checkpoint: null
"""


def compiled(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "job.yaml").write_text(JOB)
    command = [sys.executable, "-m", "launcher", "plan", "job.yaml", "--compile", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def fitting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The verdict on a job that fits."""
    result = compiled(tmp_path_factory.mktemp("fitting"), "-c", "v5e-1", "-o", "json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_forecast_follows_the_compiled_schedule(fitting: dict[str, Any]) -> None:
    forecast, bounds = fitting["forecast"], fitting["bounds"]
    assert forecast["basis"] == "compiled schedule"
    assert sum(forecast["parts"].values()) == pytest.approx(forecast["step_time_s"])
    assert forecast["step_time_s"] == pytest.approx(fitting["schedule"]["device_s"])
    # What the core does is followed apart from what the step waits for: here nothing else counts.
    work = sum(forecast["parts"][name] for name in (MATRIX_PRODUCTS, ATTENTION, OTHER_FUSIONS))
    assert work == pytest.approx(fitting["schedule"]["busy"][CORE])
    # With 128 tokens the step waits for HBM, which its fusions read more often than they must.
    assert bounds["step_s"] < forecast["step_time_s"] < 5 * bounds["step_s"]
    assert 0 < forecast["parts"]["matrix products"] < forecast["step_time_s"]
    assert forecast["cost"]["price_per_chip_hour"] == 1.20


def test_what_fits_is_needed_where_the_plan_says(fitting: dict[str, Any]) -> None:
    found = fitting
    assert found["fits"]
    assert found["hbm_needed_bytes"] <= found["hbm_available_bytes"] == 16 * GiB
    for part in ("parameters", "optimizer"):
        assert found["memory"][part] == found["bytes_per_device"][part]
    # The parts are the plan's and the compiler's; the sum is the compiler's alone.
    assert sum(found["memory"].values()) == pytest.approx(found["hbm_needed_bytes"], rel=0.02)
    estimate = found["estimate"]
    assert estimate["gradients"] == found["bytes_per_device"]["gradients"]
    assert 0 < estimate["kept"] < found["memory"]["temporaries"] - estimate["gradients"]


def test_an_evaluation_is_compiled_too(tmp_path: Path) -> None:
    """Its products need less than those of training, beside the same parameters and moments."""
    words = ["-c", "v5e-1", "model.layers=4", "eval={every_steps: 5}"]
    result = compiled(tmp_path, *words, "-o", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    state = found["memory"]["parameters"] + found["memory"]["optimizer"]
    assert state < found["evaluation_bytes"] < found["hbm_needed_bytes"]


def test_what_is_a_little_too_large_is_refused_as_a_little_too_large(tmp_path: Path) -> None:
    result = compiled(tmp_path, "-c", "v5e-1", "model.layers=14", "-o", "json")
    assert result.returncode == 1, result.stderr
    assert "does not fit: needs 16.1 GiB of 15.8 GiB HBM per device" in result.stderr
    found = json.loads(result.stdout)
    assert "RESOURCE_EXHAUSTED" in found["message"]
    assert found["hbm_available_bytes"] == int(15.75 * GiB), "libtpu keeps some for itself"
    assert sum(found["memory"].values()) == found["hbm_needed_bytes"]


def test_two_slices_of_it_are_compiled_as_one_program(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text("{accelerator: v4-16, slices: 2, provider: {kind: gcp}}")
    words = ["data.global_batch=16", "model.layers=1", "mesh.tensor=2"]
    result = compiled(tmp_path, "-c", "two.yaml", *words, "-o", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["fits"]
    parts, schedule = found["forecast"]["parts"], found["schedule"]
    assert {COLLECTIVES.format(axis) for axis in ("data", "tensor")} <= {*parts}
    assert sum(parts.values()) == pytest.approx(schedule["device_s"] + parts[HOST])
    assert max(schedule["busy"].values()) <= schedule["device_s"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-c", "v4-8", "--simulate", "data.global_batch=4"], "without --simulate"),
        (
            ["-c", "h100-8", "data.global_batch=8"],
            "only TPUs can be compiled for without the hardware",
        ),
    ],
)
def test_where_there_is_no_compiler_it_says_so(tmp_path: Path, words: list[str], why: str) -> None:
    result = compiled(tmp_path, *words)
    assert result.returncode == 2
    assert why in result.stderr
    assert "mesh" in result.stdout, "the arithmetic plan is there all the same"
