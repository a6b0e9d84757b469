"""`launch plan --compile`: what the TPU compiler says of the step, from a process of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from launcher.commands import traffic
from launcher.display import format_bytes, format_seconds, plan_as_json, print_plan
from launcher.exits import BAD_USAGE, JOB_FAILED, OK, fail
from launcher.host.reaper import die_with_parent
from launcher.launch import Launch
from launcher.plan import TrainingLaunch
from trainer.spec.chips import GiB
from trainer.spec.config import dump

TIMEOUT_S = 1800.0


class NoVerdictError(Exception):
    """The compiler cannot be asked; says why."""


def tell(launch: Launch, *, shardings: bool, as_json: bool) -> int:
    """The plan with the compiler's verdict; returns the exit code of `launch`."""
    errors = Console(stderr=True)
    if not as_json:
        print_plan(Console(), launch, shardings=shardings)
    try:
        with errors.status(f"compiling the step for {launch.plan.world.accelerator}"):
            verdict = ask(launch)
    except NoVerdictError as error:
        return fail(errors, f"--compile: {error}", BAD_USAGE)
    if as_json:
        print(json.dumps(json.loads(plan_as_json(launch)) | verdict, indent=2))
    else:
        _print(Console(), verdict)
    return OK if verdict["fits"] else fail(errors, _refusal(verdict), JOB_FAILED)


def ask(launch: Launch) -> dict[str, Any]:
    """The fields of trainer.estimate.Verdict. Raises NoVerdictError."""
    if not isinstance(launch, TrainingLaunch):
        raise NoVerdictError("what a command runs is not known")
    if launch.plan.world.on_cpu:
        raise NoVerdictError("it is for a real TPU: name one, and leave out --simulate")
    with tempfile.TemporaryDirectory() as folder:
        job, plan = Path(folder) / "job.yaml", Path(folder) / "plan.json"
        job.write_text(dump(launch.job), encoding="utf-8")
        plan.write_text(launch.plan.model_dump_json(), encoding="utf-8")
        child = _compile(job, plan)
    if child.returncode:
        # libtpu itself says much on standard error.
        said = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        raise NoVerdictError(said[-1])
    return json.loads(child.stdout)


def _compile(job: Path, plan: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-m", "trainer.estimate", str(job), str(plan)],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            preexec_fn=die_with_parent(os.getpid()),
        )
    except subprocess.TimeoutExpired:
        raise NoVerdictError(f"the compiler was not done in {TIMEOUT_S / 60:.0f} minutes") from None


def _print(console: Console, verdict: dict[str, Any]) -> None:
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in verdict["memory"].items())
    lines = [
        f"compiled in {format_seconds(verdict['compile_s'])}; per device: {parts}",
        verdict["message"] or f"fits: needs {_of(verdict)}",
    ]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    if collectives := verdict["collectives"]:
        console.print(Padding(traffic.table(collectives), (1, 0, 0, 0)))
        console.print(Text(traffic.summary(collectives)), soft_wrap=True)
        console.print(Text(traffic.shares(verdict["strategies"])), soft_wrap=True)


def _refusal(verdict: dict[str, Any]) -> str:
    if verdict["hbm_needed_bytes"] is None:
        return "does not fit"
    return f"does not fit: needs {_of(verdict)}"


def _of(verdict: dict[str, Any]) -> str:
    needed, available = verdict["hbm_needed_bytes"], verdict["hbm_available_bytes"]
    return f"{needed / GiB:.1f} GiB of {available / GiB:.1f} GiB HBM per device"
