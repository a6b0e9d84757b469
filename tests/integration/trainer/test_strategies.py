"""What crosses the wires of a real pod, for every kind of parallelism, as its compiler decides.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.sampling import sampled

pytestmark = pytest.mark.tpu_compiler
JOB = """\
name: strategies
steps: 10
model:
  {layers: 8, d_model: 1024, heads: 8, kv_heads: 8, head_dim: 128, d_ff: 4096, remat: full,
  tied_embeddings: false}
data: {source: text, path: "x/*", seq_len: 1024, global_batch: 32}
eval: null
sample: null
checkpoint: null
"""
TWO_SLICES = "{accelerator: v5e-16, slices: 2, provider: {kind: gcp}}"
EXPERTS = "{count: 8, top_k: 2, capacity_factor: null}"
MESHES = {
    "fsdp and tensor": (["-c", "v5e-16", "mesh.tensor=2"],),
    "chunks of sequences": (["-c", "v5e-16", "mesh.context=4", "mesh.context_attention=chunks"],),
    "parts of sequences, by heads": (["-c", "v5e-16", "mesh.context=4"],),
    "two slices, each fsdp": (["-c", "two.yaml"],),
}
ALWAYS = ("fsdp and tensor",)


@pytest.fixture(scope="module", params=sampled(MESHES, ALWAYS))
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compiled(tmp_path_factory.mktemp("plan"), *request.param)


def compiled(folder: Path, *options: str) -> Any:
    """Returns what `launch plan --compile` prints."""
    (folder / "job.yaml").write_text(JOB)
    (folder / "two.yaml").write_text(TWO_SLICES)
    command = [sys.executable, "-m", "launcher", "plan", "job.yaml", *options]
    result = subprocess.run(
        [*command, "--compile", "-o", "json"], cwd=folder, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_each_kind_of_parallelism_sends_what_it_must(found: Any) -> None:
    for name, share in found["strategies"].items():
        if share["must"] and name != "data":
            assert 0.9 < share["sent"] / share["must"] < 1.1, name


def test_all_others_are_few(found: Any) -> None:
    sent = {name: share["sent"] for name, share in found["strategies"].items()}
    # Some gradients cross slices before they are in parts for all devices.
    beyond_gradients = max(0, sent["data"] - found["strategies"]["data"]["must"])
    assert sent["other"] + beyond_gradients < 0.05 * sum(sent.values())


def test_only_replicas_cross_slices(found: Any) -> None:
    crossing = {one["axis"] for one in found["collectives"] if one["link"] == "dcn"}
    assert all(axis.startswith("data") for axis in crossing)
    assert bool(crossing) == (found["plan"]["world"]["slices"] > 1)


def test_gathers_overlapped_by_computation_are_reported(found: Any) -> None:
    gathers = [
        one for one in found["collectives"] if one["kind"] == "all-gather" and one["part"] == "mlp"
    ]
    assert bool(gathers) == (found["plan"]["mesh"]["fsdp"] > 1)
    assert all(one["overlapped"] for one in gathers)


@pytest.mark.full
def test_experts_get_a_row_for_each_choice_and_nothing_else(tmp_path: Path) -> None:
    found = compiled(tmp_path, "-c", "v5e-16", "mesh.expert=4", f"model.moe={EXPERTS}")
    of_experts = [
        one for one in found["collectives"] if one["axis"] == "expert" and one["part"] == "mlp"
    ]
    ragged = sum(one["bytes"] for one in of_experts if one["kind"] == "ragged-all-to-all")
    assert ragged > 0.999 * sum(one["bytes"] for one in of_experts)
    share = found["strategies"]["expert"]
    assert share["sent"] == pytest.approx(share["must"], rel=0.01)
