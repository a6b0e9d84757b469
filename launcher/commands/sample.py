"""`launch sample`: generates text from a checkpoint, in a child process that uses JAX."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.core.environment import child_environment
from launcher.core.exit_codes import INTERRUPTED, JOB_FAILED
from launcher.host.reaper import die_with_parent
from launcher.runs.checkpoints import Entry
from launcher.runs.directory import RunFolderError, find_run, launched_in
from trainer.contract.storage.paths import is_url


@dataclass(frozen=True)
class SampleRequest:
    """The prompt and the parameters of a sample."""

    prompt: str
    tokens: int
    temperature: float
    seed: int | None
    """Random seed; None for the job's."""

    @property
    def arguments(self) -> list[str]:
        """Arguments of the child, each one with `=` because a prompt may begin with a dash."""
        seed = [] if self.seed is None else [f"--seed={self.seed}"]
        numbers = [f"--tokens={self.tokens}", f"--temperature={self.temperature}"]
        return [f"--prompt={self.prompt}", *numbers, *seed]


def write(entry: Entry, wish: SampleRequest, start_in: Path) -> int:
    """Prints the text; returns the child's exit code.

    `start_in` is the folder that the job's relative paths start from.
    """
    folder = str(entry.folder if is_url(entry.folder) else entry.folder.absolute())
    command = [sys.executable, "-m", "trainer.tools.sample_checkpoint", folder, *wish.arguments]
    parent_dies = die_with_parent(os.getpid())
    try:
        code = subprocess.run(
            command, cwd=start_in, env=child_environment(), preexec_fn=parent_dies
        ).returncode
    except KeyboardInterrupt:
        return INTERRUPTED
    return code if code >= 0 else JOB_FAILED


def folder_of_paths(run: str, runs: Path) -> Path:
    """Returns the folder that a run was launched in; the current one for checkpoints alone."""
    try:
        return launched_in(find_run(run, runs))
    except RunFolderError:
        return Path()
