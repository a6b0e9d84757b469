"""`launch audit` on real hosts, of which one flips a bit whenever it does a certain step."""

import json
from typing import Any

import pytest

from tests.support.fault_injection import flip_gradient_bit
from tests.support.launches import Launch, Launcher

pytestmark = pytest.mark.slow
JOB = """\
name: small
steps: 6
model: {layers: 2, d_model: 16, heads: 2, d_ff: 32}
data: {source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 8}
mesh: {data: 1, fsdp: -1}
optimizer: {schedule: constant, learning_rate: 1e-2}
eval: null
sample: null
checkpoint: {every_steps: 3, keep: 9}
retries: {failures: 0, preemptions: 0, standby_after_s: null}
"""
CLUSTER = """\
accelerator: cpu
hosts: %d
devices_per_host: %d
provider: {kind: local%s}
"""


def test_audit_names_the_host_of_a_flip_that_no_loss_shows(launch: Launcher) -> None:
    (launch.folder / "job.yaml").write_text(JOB)
    option = flip_gradient_bit(launch.folder, hosts=4, host=2, step=5, fault=(3, 12, 7))
    (launch.folder / "faulty.yaml").write_text(CLUSTER % (4, 1, option))
    (launch.folder / "one.yaml").write_text(CLUSTER % (1, 2, ""))
    run = launch.on("faulty.yaml", "flipped")
    assert run.wait() == 0, run.output

    found = audited(launch, 1, "flipped")
    assert (found["kind"], found["suspects"], found["replays"]) == ("corrupt_host", [2], 5)
    assert found["difference"]["step"] == 5
    assert (found["first_step"], found["checkpoints"], found["changes"]) == (4, [6], [])

    elsewhere = audited(launch, 0, "flipped", "--steps", "1-4", "-c", "one.yaml")
    assert (elsewhere["kind"], elsewhere["start_step"]) == ("rounding", 0)
    assert elsewhere["largest_relative_difference"] < elsewhere["tolerance"] < 1e-3

    report = Launch(launch.folder, launch.traces, "report", ["report", "flipped"])
    assert report.wait() == 0, report.output
    assert found["text"] in (run.run_dir / "report.html").read_text()


def audited(launch: Launcher, code: int, *words: str) -> dict[str, Any]:
    """Audits a run with an expected exit code; returns what the audit prints."""
    done = Launch(launch.folder, launch.traces, "audit", ["audit", *words, "-o", "json"])
    assert done.wait() == code, done.output
    found = json.loads(done.output[done.output.index("{") :])
    assert "kind" in found, done.output
    return found
