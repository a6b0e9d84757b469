"""A run whose tokenizer is trained, on two hosts of which each trains its own."""

import json
from pathlib import Path

import pytest

from tests.faults.launches import JOB, Launcher
from tests.leftovers import run_launcher
from trainer.spec.curve import curve

pytestmark = pytest.mark.slow
SIZE = 300


def test_hosts_train_the_same_tokenizer_and_the_run_goes_on_and_is_exported(
    launch: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [tmp_path / f"cache-{host}" for host in range(2)]
    monkeypatch.setenv("XDG_CACHE_HOME", str(own[0]))
    for number, path in enumerate(sorted((launch.folder / "corpus").iterdir())):
        path.write_text(" ".join(f"word{n * n % 97} of file {number}," for n in range(99)))
    (launch.folder / "job.yaml").write_text(
        JOB.replace("path:", f"tokenizer: {{train: {SIZE}}}, path:")
        .replace("steps: 100000", "steps: 4")
        .replace("sample: null", "sample: {prompt: word, tokens: 8}")
        + "checkpoint: {every_steps: 4}\n"
    )
    run = launch(provider=f", host_env: {{1: {{XDG_CACHE_HOME: {own[1]}}}}}")
    assert run.wait() == 0, run.output
    (one,), (other,) = (list((cache / "slipway" / "tokenizers").iterdir()) for cache in own)
    assert one.name == other.name and one.read_bytes() == other.read_bytes()
    assert (run.run_dir / "sample.txt").read_text().startswith("word")

    again = launch.resume("small", "steps=8")
    assert again.wait() == 0, again.output
    assert "restored step 4" in again.output
    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    assert [line["step"] for line in curve(lines) if "loss" in line] == list(range(1, 9))

    words = ("checkpoints", "export", "small", "--to", "exported")
    exported = run_launcher(launch.folder, launch.traces.environment, *words)
    assert exported.returncode == 0, exported.stderr
    folder = launch.folder / "exported"
    assert json.loads((folder / "tokenizer.json").read_text()) == json.loads(one.read_text())
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == SIZE
    launch.traces.assert_nothing_left(timeout_s=5.0)
