"""A run that goes back after a spike, and goes on as if it had never had the bad examples."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import gang
from tests.support.jobs import world_of
from tests.support.poisoned import (
    BAD_STEP,
    BATCH,
    ORDER,
    POISONED,
    SAVED,
    STEPS,
    bad_examples,
    poisoned_job,
    write_corpus,
)
from trainer.contract.protocol.exit_codes import ProgramExit
from trainer.contract.records import checkpoint_metadata, exclusions
from trainer.contract.records.exclusions import EXCLUDED
from trainer.contract.records.metrics_file import curve
from trainer.step.bookkeeping import digest

HOSTS = world_of(2, 1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def rewound(corpus, tmp_path_factory) -> gang.Ended:
    """The run at the end of its first attempt, which met the poisoned document."""
    folder = tmp_path_factory.mktemp("rewound")
    return gang.run(poisoned_job(corpus, on_spike="rewind"), HOSTS, folder)


def _again(ended: gang.Ended, corpus: Path, tmp_path: Path, world=HOSTS) -> list[dict]:
    """The curve after the next attempt, in a copy of the run."""
    folder = tmp_path / "again"
    shutil.copytree(ended.run_dir, folder)
    job = poisoned_job(corpus, on_spike="rewind")
    after = gang.run(job, world, folder, attempt=2)
    assert set(after.codes) == {0}, "\n".join(after.outputs)
    about = checkpoint_metadata.read_about(folder / "checkpoints" / str(STEPS))
    assert about.excluded == exclusions.read(folder / "checkpoints")
    return curve((folder / "metrics.jsonl").read_text().splitlines())


@pytest.fixture(scope="module")
def again(rewound, corpus, tmp_path_factory) -> list[dict]:
    """The curve after the next attempt, on the same hosts."""
    return _again(rewound, corpus, tmp_path_factory.mktemp("same"))


@pytest.mark.slow
def test_every_host_goes_back_and_the_examples_are_recorded(rewound):
    assert rewound.codes == [ProgramExit.STOPPED] * 2
    for output in rewound.outputs:
        assert f"step {BAD_STEP}: loss" in output
    (spike,) = [event for event in rewound.events if event["event"] == "spike"]
    assert (spike["step"], spike["action"]) == (BAD_STEP, "rewound")
    assert spike["grad_norm"] > spike["grad_norm_limit"]
    (one,) = exclusions.read(rewound.run_dir / "checkpoints")
    assert (one.step, one.attempt) == (BAD_STEP, 1)
    assert (one.first, one.count) == ((BAD_STEP - 1) * BATCH, BATCH)


@pytest.mark.slow
def test_later_curve_is_that_of_a_run_without_the_examples(rewound, again, corpus, tmp_path):
    never = tmp_path / "never"
    (never / "checkpoints").mkdir(parents=True)
    shutil.copy(rewound.run_dir / "checkpoints" / EXCLUDED, never / "checkpoints")
    reference = gang.run(poisoned_job(corpus), HOSTS, never)
    for key in ("step", "loss", "grad_norm", "learning_rate", "tokens", "epoch", "examples"):
        assert [line[key] for line in again] == [line[key] for line in reference.steps()]
    bad, order = set(bad_examples()), [int(ORDER[item]) for item in range((STEPS + 1) * BATCH)]
    kept = [number for number in order if number not in bad]
    for line in again:
        numbers = kept[(line["step"] - 1) * BATCH : line["step"] * BATCH]
        assert line["examples"] == f"{int(digest(jnp.array(numbers))):08x}"


@pytest.mark.slow
def test_resume_on_another_world_honours_the_exclusion(rewound, again, corpus, tmp_path):
    other = _again(rewound, corpus, tmp_path, world_of(1, 4))
    assert [line["examples"] for line in other] == [line["examples"] for line in again]
    losses = [[line["loss"] for line in lines] for lines in (again, other)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def _explain(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainer.tools.explain_step", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_poisoned_document_is_found_by_name(rewound):
    ended = _explain(rewound.run_dir, f"--step={BAD_STEP}", "--top=2")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["from_step"], found["is_excluded"], found["count"]) == (SAVED, True, BATCH)
    first, second = found["examples"]
    assert first["example"] == POISONED and first["loss"] > 2 * second["loss"]
    (document,) = first["documents"]
    assert document["document"] == f"corpus.jsonl:{POISONED + 1}"
    assert (document["line"], document["first_token"]) == (POISONED + 1, 0)
    (spike,) = [event for event in rewound.events if event["event"] == "spike"]
    assert found["loss"] == pytest.approx(spike["loss"], rel=1e-5)


@pytest.mark.slow
def test_step_that_cannot_be_computed_again_says_what_is_missing(rewound, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(rewound.run_dir, folder)
    about = folder / "checkpoints" / str(SAVED) / "about.json"
    other = {"code": "0" * 64, "corpus_sha256": "1" * 64}
    about.write_text(json.dumps({**json.loads(about.read_text()), **other}))
    ended = _explain(folder, f"--step={BAD_STEP}")
    assert ended.returncode == 2
    assert f"step {SAVED} was computed by 000000000000" in ended.stderr
    assert f"that of step {SAVED} has 111111111111" in ended.stderr
    ended = _explain(folder, "--step=900")
    assert ended.returncode == 2
    assert f"step 900: the run has recorded {BAD_STEP} steps" in ended.stderr
