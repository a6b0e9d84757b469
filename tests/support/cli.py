"""The `launch` command as a process, and what `launch status` prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
JOB = """\
name: tiny
steps: 20
model: {preset: tiny}
data:
  source: stdlib
  seq_len: 64
  global_batch: 16
"""


def launch(
    folder: Path, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )


def status(folder: Path, *words: str) -> str:
    result = launch(folder, "status", "small", *words, environment={"COLUMNS": "200"})
    assert result.returncode == 0, result.stderr
    return result.stdout


def status_as_json(folder: Path) -> dict:
    return json.loads(status(folder, "-o", "json"))
