"""`launch audit` with another Python and another JAX than those that made the run."""

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.audited_runs import CLUSTER, JOB
from tests.support.launches import Launcher
from tests.support.processes import LAUNCH_TIMEOUT_S

ROOT = Path(__file__).parents[3]
OTHERS = [
    folder / "bin" / "python"
    for folder in (ROOT / ".venv", ROOT / ".venv-3.13")
    if (folder / "bin" / "python").exists() and folder.resolve() != Path(sys.prefix).resolve()
]
"""Python of the other environment of this checkout, which CI has made before."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not OTHERS, reason="this checkout has no environment of another Python"),
]


def test_other_versions_reproduce_a_run_up_to_rounding(launch: Launcher) -> None:
    (launch.folder / "job.yaml").write_text(JOB % (6, 3))
    (launch.folder / "one.yaml").write_text(CLUSTER % (1, 2, ""))
    run = launch.on("one.yaml", "made")
    assert run.wait() == 0, run.output

    environment = {**launch.traces.environment, "PYTHONPATH": str(ROOT)}
    del environment["XLA_FLAGS"]  # of this Python's jaxlib: another one does not know them
    audited = subprocess.run(
        [str(OTHERS[0]), "-m", "launcher", "audit", "made", "-o", "json"],
        cwd=launch.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LAUNCH_TIMEOUT_S,
    )
    assert audited.returncode == 0, audited.stdout + audited.stderr
    found = json.loads(audited.stdout)
    before, now = found["run_versions"], found["replay_versions"]
    assert before["python"] == platform.python_version() != now["python"]
    assert f"jax: {before['jax']} -> {now['jax']}" in found["changes"]
    assert found["kind"] in ("equal", "rounding") and found["suspects"] == []
    assert f"jax {before['jax']}" in found["text"] and f"jax {now['jax']}" in found["text"]
