"""What benchmarks/gpu.py measures, in processes of their own: the trainer, and PyTorch."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHOWN_LINES = 25
EXHAUSTED = "RESOURCE_EXHAUSTED"
"""XLA's word for too little memory, in compilation and in execution."""


class PartError(Exception):
    """A part of the benchmark did not finish; the message has the reason."""


class OutOfMemoryError(PartError):
    """The GPU's memory is too small."""


class Trainer:
    """A running trainer; a context manager that ends it. Its run is FOLDER/runs/NAME."""

    def __init__(
        self,
        folder: Path,
        name: str,
        job: Mapping[str, Any],
        overrides: Sequence[str] = (),
        *,
        on_cpu: bool,
        environment: Mapping[str, str],
    ):
        self._name, self._log = name, folder / f"{name}.log"
        self._metrics = folder / "runs" / name / "metrics.jsonl"
        file = folder / f"{name}.yaml"
        file.write_text(json.dumps({**job, "name": name}))  # JSON is YAML
        paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
        variables = {
            "JAX_PLATFORMS": "cpu" if on_cpu else "cuda,cpu",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trainer", str(file), *overrides],
                cwd=folder,
                env={**os.environ, **variables, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> "Trainer":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def metrics(self, deadline: float) -> list[dict[str, Any]]:
        """Waits until the run ends; returns the metrics of its steps.

        `deadline` is one of time.monotonic(). Raises PartError.
        """
        try:
            code = self._process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise PartError(f"{self._name}: the time is over\n{self._tail()}") from None
        if code:
            kind = OutOfMemoryError if EXHAUSTED in self._output() else PartError
            raise kind(f"{self._name}: exit code {code}\n{self._tail()}")
        lines = map(json.loads, self._metrics.read_text(encoding="utf-8").splitlines())
        return [line for line in lines if "step_time_s" in line]

    def _tail(self) -> str:
        return "\n".join(self._output().splitlines()[-SHOWN_LINES:])

    def _output(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


def pytorch_times_s(settings: Path, deadline: float) -> list[float]:
    """Runs gpu_torch.py until it ends; returns the seconds of its measured steps.

    `deadline` is one of time.monotonic(). Raises PartError.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_torch", str(settings)],
            capture_output=True,
            text=True,
            timeout=max(1.0, deadline - time.monotonic()),
        )
    except subprocess.TimeoutExpired:
        raise PartError("the time is over") from None
    if done.returncode:
        kind = OutOfMemoryError if "OutOfMemoryError" in done.stderr else PartError
        raise kind(f"exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
