"""`launch plan --search` by arithmetic alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import ROOT, launch

JOB = """\
name: large
steps: 10
model: {preset: llama3-1b}
data: {source: text, path: "x/*", seq_len: 4096, global_batch: 64}
checkpoint: null
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def searched(folder: Path, *words: str) -> dict[str, Any]:
    result = launch(folder, "plan", "job.yaml", "--search", "--no-compile", "-o", "json", *words)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_best_plan_is_printed_as_overrides_to_paste(folder: Path) -> None:
    result = launch(folder, "plan", "-c", "tpu-v4-32", "job.yaml", "--search", "--no-compile")
    assert result.returncode == 0, result.stderr
    best = result.stdout.splitlines()[-1].removeprefix("the best: ")
    again = launch(folder, "plan", "-c", "tpu-v4-32", "job.yaml", *best.split(), "-o", "json")
    assert again.returncode == 0, again.stderr
    assert "the job as it is needs more than" in result.stdout
    assert "by arithmetic alone: --no-compile" in result.stdout


def test_as_json_every_alternative_that_may_fit_has_its_figures(folder: Path) -> None:
    found = searched(folder, "-c", "tpu-v4-32")
    best = found["alternatives"][0]
    assert best["hbm_estimate_bytes"] == sum(best["estimate"].values())
    assert best["hbm_estimate_bytes"] <= found["hbm_available_bytes"] == 32 << 30
    assert best["fits"] is best["hbm_needed_bytes"] is None, "nobody was asked"
    plan = json.loads(
        launch(
            folder, "plan", "-c", "tpu-v4-32", "job.yaml", *best["overrides"], "-o", "json"
        ).stdout
    )
    assert plan["plan"]["mesh"] == best["mesh"]
    assert plan["bounds"] == best["bounds"]
    assert len(found["alternatives"]) < found["legal"], "some surely do not fit"


def test_gpus_are_searched_by_arithmetic(folder: Path) -> None:
    result = launch(folder, "plan", "-c", "h200-16", "job.yaml", "--search")
    assert result.returncode == 0, result.stderr
    assert "by arithmetic alone: h200-16: only TPUs can be compiled for" in result.stdout


def test_where_nothing_fits_it_ends_with_1(folder: Path) -> None:
    words = ["plan", "-c", "v5e-4", "job.yaml", "model.preset=llama3-70b", "--search"]
    result = launch(folder, *words)
    assert result.returncode == 1
    assert "nothing legal on this cluster fits" in result.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-c", "local", "--search"], "needs a real accelerator"),
        (["-c", "v4-8", "--simulate", "--search"], "leave out --simulate"),
        (["-c", "h200-16", "--search", "--compile"], "--compile: h200-16: only TPUs"),
    ],
)
def test_what_cannot_be_searched_is_refused(folder: Path, words: list[str], why: str) -> None:
    result = launch(folder, "plan", "job.yaml", *words)
    assert result.returncode == 2
    assert why in result.stderr


def test_what_a_program_would_do_is_not_searched(folder: Path) -> None:
    (folder / "any.yaml").write_text("name: any\ncommand: [python, x.py]\n")
    result = launch(folder, "plan", "-c", "v4-8", "any.yaml", "--search")
    assert result.returncode == 2
    assert "what a command runs is not known" in result.stderr


def test_searching_imports_no_jax(folder: Path) -> None:
    code = (
        "import sys\n"
        "from launcher.cli.app import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "print({'jax', 'ray', 'flax', 'grain'} & set(sys.modules), file=sys.stderr)"
    )
    words = ["plan", "-c", "v4-32", "job.yaml", "--search", "--no-compile"]
    result = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert result.stderr.strip() == "set()"
