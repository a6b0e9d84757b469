"""A run on real TPUs starts once their compiler has said that its step fits.

uv run --group tpu_compiler pytest -m tpu_compiler

There is no TPU here: what the check lets through fails where the program looks for one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tpu_compiler
# 67 million parameters a layer; with moments and gradients 1 GiB, of 16.
JOB = """\
name: large
steps: 1
model: {layers: 16, d_model: 2048, heads: 16, kv_heads: 16, d_ff: 8192}
data: {source: text, path: "corpus.txt", seq_len: 128, global_batch: 1, validation_fraction: 0}
eval: null
sample: null
checkpoint: null
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "corpus.txt").write_text("A step that is too large. " * 100)
    return tmp_path


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", "-c", "v5e-1", "job.yaml", *words],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=300,
    )


def verdict_file(folder: Path) -> Path:
    (path,) = (folder / "state" / "slipway" / "verdicts").glob("*.json")
    return path


def test_what_does_not_fit_is_not_started(folder: Path) -> None:
    result = launch(folder)
    assert result.returncode == 1, result.stderr
    assert "does not fit: needs" in result.stderr
    assert "launch plan --search" in result.stderr
    assert not (folder / "runs").exists()


def test_the_compiler_is_asked_once_for_a_plan(folder: Path) -> None:
    launch(folder)
    verdict = json.loads(verdict_file(folder).read_text())
    verdict_file(folder).write_text(json.dumps(verdict | {"hbm_needed_bytes": 99 << 30}))
    assert "does not fit: needs 99.0 GiB" in launch(folder).stderr
    assert "does not fit: needs 99.0 GiB" not in launch(folder, "model.layers=17").stderr


def test_it_can_be_left_out(folder: Path) -> None:
    launch(folder, "--no-compile-check")
    assert (folder / "runs" / "large").is_dir()
    assert not (folder / "state" / "slipway" / "verdicts").exists()
