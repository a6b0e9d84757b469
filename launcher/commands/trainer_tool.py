"""Runs a tool of the trainer, which uses JAX, in a child process."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.core.environment import child_environment
from launcher.core.errors import InterruptError, error_of
from launcher.core.exit_codes import JOB_FAILED, OK
from launcher.host.reaper import die_with_parent


def run_tool(name: str, arguments: Sequence[str], start_in: Path | None = None) -> str:
    """Runs `trainer.tools.NAME`, and returns what it prints on standard output.

    `start_in` is the folder that relative paths start from; None for the current one.

    Raises the error that its exit code stands for, with what it prints on standard error, and
    InterruptError after Ctrl-C.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-m", f"trainer.tools.{name}", *arguments],
            cwd=start_in,
            env=child_environment(),
            capture_output=True,
            text=True,
            errors="replace",
            preexec_fn=die_with_parent(os.getpid()),
        )
    except KeyboardInterrupt:
        raise InterruptError("interrupted") from None
    code, errors = ended.returncode, ended.stderr.strip()
    if code != OK:
        silent = f"trainer.tools.{name} ended with exit code {code}"
        raise error_of(code if code > 0 else JOB_FAILED, errors or silent)
    if errors:
        print(errors, file=sys.stderr)
    return ended.stdout
