"""A process of the TPU compiler at work on the step of one launch."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launcher.host.reaper import die_with_parent
from launcher.launch import Launch
from launcher.plan import TrainingLaunch
from trainer.spec.compiler import lacks_compiler
from trainer.spec.config import dump

TIMEOUT_S = 1800.0
POLL_S = 0.05


class NoVerdictError(Exception):
    """The compiler cannot be asked, or did not answer; says why."""


class Compilation:
    """As a context; nothing of it is left afterwards, nor when this process dies.

    Raises NoVerdictError where there is no compiler for the launch.
    """

    def __init__(self, launch: Launch, timeout_s: float = TIMEOUT_S):
        if not isinstance(launch, TrainingLaunch):
            raise NoVerdictError("what a command runs is not known")
        if lack := lacks_compiler(launch.plan.world):
            raise NoVerdictError(lack)
        self._temporary = TemporaryDirectory(prefix="slipway-compile-")
        self._folder = Path(self._temporary.name)
        (self._folder / "job.yaml").write_text(dump(launch.job), encoding="utf-8")
        (self._folder / "plan.json").write_text(launch.plan.model_dump_json(), encoding="utf-8")
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._process = self._start()

    def __enter__(self) -> "Compilation":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._temporary.cleanup()

    @property
    def is_over(self) -> bool:
        """Done, or late."""
        return self._process.poll() is not None or time.monotonic() > self._deadline

    def verdict(self) -> dict[str, Any]:
        """Waits for it: the fields of trainer.estimate.Verdict. Raises NoVerdictError."""
        while not self.is_over:
            time.sleep(POLL_S)
        if self._process.returncode is None:
            self._process.kill()
            raise NoVerdictError(f"the compiler was not done in {self._timeout_s / 60:.0f} minutes")
        if self._process.returncode:
            # libtpu itself says much on standard error.
            said = self._said("stderr").strip().splitlines()
            raise NoVerdictError(said[-1] if said else f"exit code {self._process.returncode}")
        return json.loads(self._said("stdout"))

    def _start(self) -> subprocess.Popen[bytes]:
        names = [str(self._folder / name) for name in ("job.yaml", "plan.json")]
        with (
            (self._folder / "stdout").open("wb") as output,
            (self._folder / "stderr").open("wb") as errors,
        ):
            return subprocess.Popen(
                [sys.executable, "-m", "trainer.estimate", *names],
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                preexec_fn=die_with_parent(os.getpid()),
            )

    def _said(self, stream: str) -> str:
        return (self._folder / stream).read_text(encoding="utf-8", errors="replace")
