"""The bounds in docs/reference/benchmarks.md are those of `roofline`, and no run exceeds one."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.llama_jobs import found, world_of
from trainer.contract.config.job import Job

LLAMA_2_70B = {
    "layers": 80, "d_model": 8192, "heads": 64, "kv_heads": 8, "d_ff": 28_672,
    "vocab_size": 32_000, "tied_embeddings": False,
}  # fmt: skip
ROWS_PER_CHIP = 8


class Row(NamedTuple):
    model: str
    pod: str
    positions: str
    measured: str
    bound: str
    share: str
    source: str


def rows() -> list[Row]:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "benchmarks.md").read_text(
        encoding="utf-8"
    )
    lines = [line for line in text.splitlines() if line.startswith("| llama")]
    return [Row(*(cell.strip() for cell in line.strip("|").split(" | "))) for line in lines]


def bound(row: Row) -> float:
    """Tokens a second and chip."""
    world = world_of(row.pod)
    model = LLAMA_2_70B if row.model == "llama2-70b" else {"preset": row.model}
    data = {"source": "text", "path": "x", "seq_len": int(row.positions)}
    data["global_batch"] = ROWS_PER_CHIP * world.devices
    job = Job.model_validate({"name": "job", "steps": 1, "model": model, "data": data})
    return found(job, world).tokens_per_s / world.devices


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.model} {row.pod}")
def test_measured_speed_is_below_bound_of_table(row: Row) -> None:
    assert float(row.measured) < bound(row)
    assert row.bound == f"{bound(row):.0f}"
    assert row.share == f"{float(row.measured) / bound(row):.0%}".replace("%", " %")


def test_the_table_has_its_rows() -> None:
    assert len(rows()) >= 4
