"""Runs a module of the trainer on one job, in a separate process.

The launcher has no JAX, and the effects of a user's code or a compiler stay in that process.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from pydantic import TypeAdapter

from launcher.core.wait import wait_until
from launcher.host.reaper import die_with_parent
from trainer.contract.config.job import Job
from trainer.contract.config.loader import dump
from trainer.contract.planning.custom_model_validation import KEY
from trainer.contract.planning.parameter_shapes import ModelDescription, Parameter
from trainer.contract.planning.plan import ArrayPlan, Plan
from trainer.contract.planning.planner import PlanError
from trainer.contract.protocol.environment import JAX_PLATFORMS

POLL_INTERVAL_S = 0.05
ON_CPU = {JAX_PLATFORMS: "cpu"}
"""Variables of a process that uses no accelerator."""
Report = TypeVar("Report")
"""A dataclass that a process prints as JSON."""


class TrainerProcessError(Exception):
    """The trainer's process failed or did not finish; the message gives the reason."""


class TrainerProcess:
    """The process `python -m MODULE JOB [PLAN] [ARGUMENT...]`, which prints a report as JSON.

    A report is a line. Preliminary ones may precede it: the last one counts.
    A context manager: the process and its files are gone afterwards. The process ends when its
    parent dies.
    """

    def __init__(
        self,
        module: str,
        job: Job,
        plan: Plan | None,
        timeout_s: float,
        *,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] = ON_CPU,
    ):
        self._temporary = TemporaryDirectory(prefix="slipway-call-")
        self._folder = Path(self._temporary.name)
        files = {"job.yaml": dump(job)} | ({"plan.json": plan.model_dump_json()} if plan else {})
        for name, content in files.items():
            (self._folder / name).write_text(content, encoding="utf-8")
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        words = [*(str(self._folder / name) for name in files), *arguments]
        # A process that is killed leaves its temporary files: they go with the folder.
        temporary = {"TMPDIR": str(self._folder)}
        self._process = self._start(module, words, {**os.environ, **temporary, **environment})

    def __enter__(self) -> "TrainerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._temporary.cleanup()

    @property
    def is_over(self) -> bool:
        """Whether the process has ended or is past its deadline."""
        return self._process.poll() is not None or time.monotonic() > self._deadline

    def answer(self, report: type[Report]) -> Report:
        """Waits for the process and returns its report. Raises TrainerProcessError."""
        wait_until(lambda: self.is_over, poll_interval_s=POLL_INTERVAL_S)
        code = self._process.returncode
        if code is None:
            self._process.kill()
            raise TrainerProcessError(f"did not finish within {self._timeout_s / 60:.0f} minutes")
        if code:
            # Libraries print much to standard error; the error that ended the process is last.
            last_line = self._output("stderr").strip().splitlines()[-1:]
            raise TrainerProcessError(": ".join([f"exit code {code}", *last_line]))
        return TypeAdapter(report).validate_json("".join(self._lines()[-1:]))

    def preliminary(self, report: type[Report]) -> Report | None:
        """Returns the newest report that the process has printed; None before the first one."""
        with suppress(ValueError):  # the code of a custom model may print something else
            return TypeAdapter(report).validate_json("".join(self._lines()[-1:]))

    def _lines(self) -> list[str]:
        """Returns the complete lines of standard output."""
        return self._output("stdout").split("\n")[:-1]

    def _start(
        self, module: str, arguments: list[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (
            (self._folder / "stdout").open("wb") as output,
            (self._folder / "stderr").open("wb") as errors,
        ):
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                preexec_fn=die_with_parent(os.getpid()),
            )

    def _output(self, stream: str) -> str:
        return (self._folder / stream).read_text(encoding="utf-8", errors="replace")


TIMEOUT_S = 120.0


def parameters(job: Job) -> list[Parameter]:
    """Returns the parameters of a custom model. Raises PlanError with problems of its code.

    The user's code runs only in the child process.
    """
    try:
        with TrainerProcess("trainer.analysis.describe_model", job, None, TIMEOUT_S) as call:
            found = call.answer(ModelDescription)
    except TrainerProcessError as error:
        raise PlanError([(KEY, f"cannot import or build the model: {error}")]) from None
    if found.problems:
        raise PlanError(found.problems)
    return found.parameters


def planned(arrays: Sequence[ArrayPlan]) -> list[Parameter]:
    """Returns the parameters of another plan for the same job."""
    return [Parameter(one.name, one.shape, one.axes) for one in arrays]
