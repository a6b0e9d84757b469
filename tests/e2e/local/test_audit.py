"""`launch audit` on real hosts, of which one flips a bit whenever it does a certain step."""

import json
from typing import Any

import pytest

from tests.support.audited_runs import CLUSTER, JOB
from tests.support.fault_injection import flip_gradient_bit
from tests.support.launches import Launch, Launcher
from tests.support.processes import run_launcher

pytestmark = pytest.mark.slow


@pytest.mark.full
def test_audit_names_the_host_of_a_flip_that_no_loss_shows(launch: Launcher) -> None:
    (launch.folder / "job.yaml").write_text(JOB % (6, 3))
    option = flip_gradient_bit(launch.folder, hosts=3, host=1, step=5, fault=(3, 12, 7))
    (launch.folder / "faulty.yaml").write_text(CLUSTER % (3, 1, option))
    (launch.folder / "one.yaml").write_text(CLUSTER % (1, 2, ""))
    command(launch, "up", "faulty.yaml")  # six runs: its nodes start once
    run = launch.on("faulty.yaml", "flipped")
    assert run.wait() == 0, run.output

    found = audited(launch, 1, "flipped")
    assert (found["kind"], found["suspects"], found["replays"]) == ("corrupt_host", [1], 5)
    assert found["difference"]["step"] == 5
    assert (found["first_step"], found["checkpoints"], found["changes"]) == (4, [6], [])
    command(launch, "down", "faulty.yaml", "--yes")

    elsewhere = audited(launch, 0, "flipped", "--steps", "1-4", "-c", "one.yaml")
    assert (elsewhere["kind"], elsewhere["start_step"]) == ("rounding", 0)
    assert elsewhere["largest_relative_difference"] < elsewhere["tolerance"] < 1e-3

    command(launch, "report", "flipped")
    assert found["text"] in (run.run_dir / "report.html").read_text()


def command(launch: Launcher, *words: str) -> None:
    done = run_launcher(launch.folder, launch.traces.environment, *words)
    assert done.returncode == 0, done.stdout + done.stderr


def audited(launch: Launcher, code: int, *words: str) -> dict[str, Any]:
    """Audits a run with an expected exit code; returns what the audit prints."""
    done = Launch(launch.folder, launch.traces, "audit", ["audit", *words, "-o", "json"])
    assert done.wait() == code, done.output
    found = json.loads(done.output[done.output.index("{") :])
    assert "kind" in found, done.output
    return found
