"""`on_spike: rewind` through the launcher: one more attempt, and the name of the document."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.json_outputs import validated
from tests.support.poisoned import (
    BAD_STEP,
    BATCH,
    POISONED,
    SAVED,
    STEPS,
    poisoned_job,
    write_corpus,
)
from trainer.contract.config.loader import dump

pytestmark = pytest.mark.slow


@pytest.mark.full
def test_run_rewinds_by_itself_and_its_bad_step_is_explained(
    traces: Traces, tmp_path: Path
) -> None:
    job = poisoned_job(write_corpus(tmp_path), on_spike="rewind", name="rewound")
    (tmp_path / "job.yaml").write_text(dump(job))
    (tmp_path / "two.yaml").write_text(
        "{accelerator: cpu, hosts: 2, devices_per_host: 1, provider: {kind: local}}"
    )

    def launch(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words],
            cwd=tmp_path,
            env=traces.environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    launch("--cluster", "two.yaml", "job.yaml")
    status = validated("status", launch("status", "rewound", "-o", "json"))
    assert (status["state"], status["step"], status["attempt"]) == ("finished", STEPS, 2)
    text = launch("status", "rewound")
    assert f"spike at step {BAD_STEP}, rewound" in text
    found = validated(
        "why", launch("why", "rewound", "--step", str(BAD_STEP), "--top", "1", "-o", "json")
    )
    assert (found["from_step"], found["is_excluded"]) == (SAVED, True)
    (document,) = found["examples"][0]["documents"]
    assert document["document"] == f"corpus.jsonl:{POISONED + 1}"
    (run,) = validated("lineage", launch("lineage", "rewound", "-o", "json"))["runs"]
    assert run["excluded"] == [{"step": BAD_STEP, "count": BATCH}]
    steps = f"{BAD_STEP - 2}-{BAD_STEP + 2}"
    audited = validated("audit", launch("audit", "rewound", "--steps", steps, "-o", "json"))
    assert (audited["kind"], audited["start_step"]) == ("equal", SAVED)
