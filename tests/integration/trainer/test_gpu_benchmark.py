"""The benchmark of a GPU, as far as CPU devices can run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.full
@pytest.mark.slow
def test_tiny_model_trains_and_gives_figures(tmp_path: Path) -> None:
    result = run("product", "bfloat16", "--tiny", "--json", str(tmp_path / "figures.json"))
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["product"]["tflops"] > 0
    assert figures["bfloat16"]["tokens_per_s"] > 0
    assert "bfloat16: " in result.stdout


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU")
def test_machine_without_a_gpu_is_an_error() -> None:
    result = run()
    assert result.returncode == 2
    assert "nvidia-smi shows no GPU" in result.stderr


def test_unknown_part_is_a_usage_error() -> None:
    result = run("bf16")
    assert result.returncode == 2
    assert "unknown: bf16. Parts: product, bfloat16" in result.stderr
