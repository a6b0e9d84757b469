"""A run goes on from its checkpoint on other hosts and another mesh, through the launcher.

The curve of the run that never stopped is what each of them must give: the same examples in every
global batch, and losses within 1e-5 over the 20 steps after the restore.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.sampling import sampled
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.metrics_file import curve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SAVED, STEPS = 6, 26
GLOBAL_BATCH, SEQ_LEN = 24, 16
"""24 rows divide among 1, 2, 3, 4 and 8 hosts."""
EPOCH_STEPS = 36
JOB = f"""\
name: resized
steps: {STEPS}
model: {{layers: 2, d_model: 32, heads: 4, d_ff: 64, dropout: 0.1}}
data:
  {{source: text, path: "corpus.txt", seq_len: {SEQ_LEN}, global_batch: {GLOBAL_BATCH},
  validation_fraction: 0}}
optimizer: {{learning_rate: 3e-4, schedule: constant}}
eval: null
sample: null
checkpoint: {{every_steps: {SAVED}, keep: 100}}
"""


class Place:
    """A folder with a job, and what is launched in it."""

    def __init__(self, folder: Path, traces: Traces) -> None:
        self.folder, self._traces = folder, traces
        (folder / "job.yaml").write_text(JOB)
        # One epoch is EPOCH_STEPS steps: a separator, and whole windows.
        sentence = b"A run that stops and goes on elsewhere. "
        size = EPOCH_STEPS * GLOBAL_BATCH * SEQ_LEN
        (folder / "corpus.txt").write_bytes((sentence * size)[:size])

    def launch(self, hosts: int, devices: int, *words: str) -> str:
        """What a launch on a cluster of that size said; it must end well."""
        cluster = self.folder / f"{hosts}x{devices}.yaml"
        cluster.write_text(
            f"{{accelerator: cpu, hosts: {hosts}, devices_per_host: {devices}, "
            "provider: {kind: local}}"
        )
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words, "--cluster", str(cluster)],
            cwd=self.folder,
            env=self._traces.environment,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def steps_of(run: Path) -> list[dict[str, Any]]:
    with (run / "metrics.jsonl").open() as lines:
        return [line for line in curve(lines) if "loss" in line]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with Traces() as traces:
        yield Place(tmp_path_factory.mktemp("resize"), traces)


@pytest.fixture(scope="module")
def whole(place: Place) -> Path:
    """The run that never stopped, on 2 hosts."""
    place.launch(2, 1, "run", "job.yaml")
    return place.folder / "runs" / "resized"


ALWAYS = ("the same 2 hosts",)
ROWS = {
    "the same 2 hosts": (2, 1, []),
    "4 hosts": (4, 1, []),
    "8 hosts": (8, 1, []),
    "3 hosts": (3, 1, []),
    "1 host": (1, 1, []),
    "4 hosts, tensor parallel": (4, 1, ["mesh.tensor=4"]),
    "2 hosts of 2 devices, fsdp and tensor": (2, 2, ["mesh.tensor=2"]),
}


@pytest.mark.parametrize(("hosts", "devices", "words"), sampled(ROWS, ALWAYS))
def test_it_goes_on_as_if_nothing_had_happened(
    place: Place, whole: Path, tmp_path: Path, hosts: int, devices: int, words: list[str]
) -> None:
    run = tmp_path / "resized"
    shutil.copytree(whole, run)
    for checkpoint in (run / "checkpoints").iterdir():
        if checkpoint.name.isdecimal() and int(checkpoint.name) > SAVED:
            shutil.rmtree(checkpoint)
    said = place.launch(hosts, devices, "resume", str(run), *words)
    assert f"restored step {SAVED}, saved on 2 hosts x 1 devices (fsdp 2)" in said
    found, wanted = steps_of(run), steps_of(whole)
    assert [line["attempt"] for line in found] == [1] * SAVED + [2] * (STEPS - SAVED)
    assert [line["examples"] for line in found] == [line["examples"] for line in wanted]
    losses, unbroken = ([line["loss"] for line in lines] for lines in (found, wanted))
    if (hosts, words) == (2, []):
        assert losses == unbroken  # to the last bit
    np.testing.assert_allclose(losses, unbroken, rtol=1e-5)


def test_every_example_of_an_epoch_is_seen_once_across_two_resizes(place: Place) -> None:
    """From fsdp to tensor parallelism and back, on 3, 1 and 2 hosts.

    A step's digest is the sum of a hash of its examples: all steps of an epoch together give the
    sum over every example exactly once, and hardly by any other way.
    """
    third = EPOCH_STEPS // 3
    place.launch(3, 1, "run", "job.yaml", "name=twice", f"steps={third}")
    place.launch(1, 2, "resume", "twice", f"steps={2 * third}", "mesh.tensor=2")
    place.launch(2, 1, "resume", "twice", f"steps={EPOCH_STEPS}", "mesh.tensor=1")
    lines = steps_of(place.folder / "runs" / "twice")
    assert [line["attempt"] for line in lines] == [1] * third + [2] * third + [3] * third
    assert {line["epoch"] for line in lines} == {1}
    total = sum(int(line["examples"], 16) for line in lines) % 2**32
    assert total == _digest(range(EPOCH_STEPS * GLOBAL_BATCH))


def _digest(examples: range) -> int:
    """Returns the digest of examples, as trainer/step/bookkeeping.py does on the devices."""
    total = 0
    for example in examples:
        mixed = (example + 0x9E3779B9) % 2**32
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            mixed = (mixed ^ (mixed >> shift)) * factor % 2**32
        total += mixed ^ (mixed >> 16)
    return total % 2**32


def test_run_without_whole_checkpoint_does_not_start_from_scratch(
    place: Place, whole: Path
) -> None:
    run = place.folder / "runs" / "spoiled"
    shutil.copytree(whole, run)
    for step in checkpoint_metadata.steps(run / "checkpoints")[2:]:
        shutil.rmtree(run / "checkpoints" / str(step))  # a damaged one takes seconds to confirm
    for about in (run / "checkpoints").glob("*/about.json"):
        about.write_text("{")
    (run / "state.json").write_text('{"state": "running"}')  # as a launch that was killed left it
    before = (run / "metrics.jsonl").read_text()
    with pytest.raises(AssertionError, match=r"no checkpoint in .* is whole") as failed:
        place.launch(1, 1, "resume", "spoiled")
    assert "code 65" in str(failed.value)
    assert (run / "metrics.jsonl").read_text() == before
    assert json.loads((run / "state.json").read_text())["state"] == "failed"
