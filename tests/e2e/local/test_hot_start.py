"""A run whose programs were compiled before it had hosts, by `launch plan --compile --keep`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.json_outputs import validated
from tests.support.launches import Launcher
from tests.support.processes import run_launcher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
JOB = """\
name: hot
steps: 4
model: {layers: 1, d_model: 16, heads: 2, d_ff: 32}
data: {source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 4}
eval: {every_steps: 4, batches: 1}
sample: {prompt: "one ", tokens: 4}
checkpoint: {every_steps: 2}
retries: {standby_after_s: null}
"""
CLUSTER = """\
{accelerator: cpu, hosts: {min: 1, max: 2}, devices_per_host: 1, provider: {kind: local}}
"""
LOADED = "hot start: loaded 2 programs that came with the run"


@pytest.fixture
def launched(launch: Launcher) -> Any:
    """Runs a command of `launch`, with caches of its own: as on another machine."""
    (launch.folder / "job.yaml").write_text(JOB)
    (launch.folder / "two.yaml").write_text(CLUSTER)

    def run(cache: str, *words: str) -> str:
        cached = {"XDG_CACHE_HOME": str(launch.folder / cache)}
        ended = run_launcher(launch.folder, {**launch.traces.environment, **cached}, *words)
        assert ended.returncode == 0, ended.stderr + ended.stdout
        return ended.stdout

    return run


def logs(run_dir: Path) -> list[str]:
    return [path.read_text() for path in sorted((run_dir / "logs").glob("host-*.log"))]


# Without this one, ssh/test_hot_start.py and integration/trainer/test_hot_start.py run in CI.
@pytest.mark.full
def test_its_first_attempt_traces_and_compiles_nothing(launch: Launcher, launched: Any) -> None:
    words = ["plan", "-c", "two.yaml", "job.yaml", "--compile", "--keep", "-o", "json"]
    kept = validated("plan", launched("here", *words))["kept"]
    store = Path(kept["folder"])
    assert store == launch.folder / "runs" / ".programs" / "hot"
    assert (kept["hosts"], kept["files"]) == ([1, 2], 3)
    assert kept["programs"] == kept["compilations"] > 3 * 4
    assert kept["bytes"] == sum(path.stat().st_size for path in store.iterdir())

    launched("there", "run", "-c", "two.yaml", "job.yaml")
    run_dir = launch.folder / "runs" / "hot"
    events = map(json.loads, (run_dir / "events.jsonl").read_text().splitlines())
    (compiled,) = (event for event in events if event["event"] == "compiled")
    assert (compiled["traces"], compiled["compilations"]) == (0, 0)
    assert [LOADED in log for log in logs(run_dir)] == [True, True]
    assert compiled_ahead(run_dir, launch.folder / "there") == "0 traces, 0 compilations"

    launched("there", "resume", "hot", "steps=5", "--no-hot")
    assert not (run_dir / "programs").exists()
    assert [log.count("hot start: ") for log in logs(run_dir)] == [1, 1]


def compiled_ahead(run_dir: Path, cache: Path) -> str:
    """What a host of the run says after it has compiled for one host."""
    files = [str(run_dir / "job.yaml"), str(run_dir / "plans" / "smaller-0001.json")]
    variables = {
        **os.environ,
        "XDG_CACHE_HOME": str(cache),
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "trainer.ahead", *files, "0"],
        env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        return process.stdout.readlines()[-1].strip()
