"""The parameters of a model of the user's own: a child process builds it, without numbers."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.host.reaper import die_with_parent
from trainer.spec.config import dump
from trainer.spec.job import Job
from trainer.spec.own_model import KEY
from trainer.spec.plan import ArrayPlan
from trainer.spec.resolve import PlanError
from trainer.spec.shapes import Parameter

TIMEOUT_S = 120.0


def parameters(job: Job) -> list[Parameter]:
    """Their code runs in the child alone. Raises PlanError with what is wrong with it."""
    found = _described(job)
    if "problems" in found:
        raise PlanError([(key, message) for key, message in found["problems"]])
    return [
        Parameter(one["name"], tuple(one["shape"]), tuple(one["axes"]))
        for one in found["parameters"]
    ]


def planned(arrays: Sequence[ArrayPlan]) -> list[Parameter]:
    """Those of another plan for the same job."""
    return [Parameter(one.name, one.shape, one.axes) for one in arrays]


def _described(job: Job) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="slipway-model-") as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(dump(job), encoding="utf-8")
        try:
            child = subprocess.run(
                [sys.executable, "-m", "trainer.describe", str(file)],
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                preexec_fn=die_with_parent(os.getpid()),
            )
        except subprocess.TimeoutExpired:
            message = f"it was not imported and built within {TIMEOUT_S:.0f} s"
            raise PlanError([(KEY, message)]) from None
    if child.returncode:
        said = child.stderr.strip().splitlines()[-1:]
        message = f"building it ended with exit code {child.returncode}"
        raise PlanError([(KEY, ": ".join([message, *said]))])
    return json.loads(child.stdout)
