"""`launch plan --search` and its advice, with the TPU compiler itself.

uv run --group tpu_compiler pytest -m compiles
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.compiles
JOB = """\
name: small
steps: 10
model: {layers: 2, d_model: 256, heads: 2, d_ff: 512}
data: {source: text, path: "x/*", seq_len: 256, global_batch: 16}
eval: null
sample: null
checkpoint: null
"""
APPEARS_S, ENDS_S = 60.0, 30.0
CODE_GIB = 0.2
"""More than the code of a step has."""


def command(folder: Path, *words: str) -> list[str]:
    (folder / "job.yaml").write_text(JOB)
    return [sys.executable, "-m", "launcher", "plan", "job.yaml", *words]


def launched(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    line = command(folder, *words)
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=600)


def test_the_compiler_is_asked_about_the_likely_best(tmp_path: Path) -> None:
    result = launched(tmp_path, "-c", "v5e-4", "--search", "-o", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    asked = [one for one in found["alternatives"] if one["fits"] is not None]
    assert asked == found["alternatives"][: len(asked)], "what is known to fit is first"
    assert len(asked) >= 3
    for one in asked:
        assert one["fits"] and one["hbm_needed_bytes"] <= found["hbm_available_bytes"]
    assert found["lacks_compiler"] == ""


def test_what_does_not_fit_fits_with_what_is_advised(tmp_path: Path) -> None:
    words = ["-c", "v5e-1", "--compile", "data.global_batch=4096", "-o", "json"]
    first = launched(tmp_path, *words)
    assert first.returncode == 1, first.stderr
    advice = json.loads(first.stdout)["advice"]
    assert advice["overrides"]
    second = launched(tmp_path, *words, *advice["overrides"])
    assert second.returncode == 0, (advice, second.stderr)


def test_a_step_is_said_to_fit_before_its_code_is_compiled(tmp_path: Path) -> None:
    result = launched(tmp_path, "-c", "v5e-4", "--compile")
    assert result.returncode == 0, result.stderr
    bound = re.search(r"the step fits: needs at most ([\d.]+) GiB of", result.stderr)
    whole = re.search(r"fits: needs ([\d.]+) GiB of", result.stdout)
    assert bound and whole, (result.stdout, result.stderr)
    assert float(bound[1]) == pytest.approx(float(whole[1]), abs=CODE_GIB)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_of_an_ended_search_no_process_is_left(tmp_path: Path, number: int) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    search = subprocess.Popen(
        command(tmp_path, "-c", "v5e-4", "--search"),
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    compilers = wait_for_compilers(search.pid)
    search.send_signal(number)
    said = search.communicate(timeout=ENDS_S)[1]
    gone, alive = psutil.wait_procs(compilers, timeout=ENDS_S)
    assert gone and not alive
    if number == signal.SIGKILL:
        return
    assert search.returncode == 130, said
    assert "interrupted" in said
    assert list(temporary.iterdir()) == []


def wait_for_compilers(pid: int) -> list[psutil.Process]:
    deadline = time.monotonic() + APPEARS_S
    while time.monotonic() < deadline:
        children = psutil.Process(pid).children(recursive=True)
        if compilers := [
            one for one in children if "trainer.analysis.compile_report" in one.cmdline()
        ]:
            return compilers
        time.sleep(0.05)
    raise TimeoutError("no compiler appeared")
