"""What the fault matrix has in common: a small job on two hosts, and the end that it must have."""

from typing import Any

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import SAME, Launch
from trainer.contract.records.metrics_file import curve

STEPS = 120
JOB = """\
name: small
steps: 120
model: {layers: 1, d_model: 16, heads: 2, d_ff: 32}
data: {source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 12}
mesh: {data: -1, fsdp: 1}
eval: {every_steps: 40, batches: 1}
sample: null
checkpoint: {every_steps: 30, keep: 100}
"""


def curve_of(run: Launch) -> list[list[Any]]:
    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    return [[line[name] for name in SAME] for line in curve(lines) if "loss" in line]


def ends(run: Launch) -> list[dict[str, Any]]:
    """How its attempts ended, all but the last."""
    return [e for e in run.events() if e["event"] == "attempt_ended"][:-1]


def assert_finished(run: Launch, unbroken: list[list[Any]], traces: Traces) -> None:
    assert run.wait() == 0, run.output
    found = curve_of(run)
    assert [line[0] for line in found] == list(range(1, STEPS + 1))
    assert [line[2:] for line in found] == [line[2:] for line in unbroken]
    losses = [line[1] for line in unbroken]
    assert [line[1] for line in found] == pytest.approx(losses, rel=1e-4)
    traces.assert_nothing_left(timeout_s=5.0)
