"""`launch sample`: what the model of a checkpoint writes, by a child process that has jax."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.core.exit_codes import INTERRUPTED, JOB_FAILED
from launcher.host.reaper import die_with_parent
from launcher.runs.checkpoints import Entry
from launcher.runs.directory import RunFolderError, find_run, launched_in
from trainer.contract.storage.paths import is_url


@dataclass(frozen=True)
class SampleRequest:
    """What is to be written."""

    prompt: str
    tokens: int
    temperature: float
    seed: int | None
    """None: the job's."""

    @property
    def words(self) -> list[str]:
        """Of the child's command line: a prompt may begin with a dash."""
        seed = [] if self.seed is None else [f"--seed={self.seed}"]
        numbers = [f"--tokens={self.tokens}", f"--temperature={self.temperature}"]
        return [f"--prompt={self.prompt}", *numbers, *seed]


def write(entry: Entry, wish: SampleRequest, start_in: Path) -> int:
    """Print the text; returns the child's exit code.

    `start_in` is where the job's relative paths start.
    """
    folder = str(entry.folder if is_url(entry.folder) else entry.folder.absolute())
    command = [sys.executable, "-m", "trainer.tools.sample_checkpoint", folder, *wish.words]
    # The child starts in another folder, and may find the trainer in this one alone.
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    parent_dies = die_with_parent(os.getpid())
    try:
        code = subprocess.run(
            command, cwd=start_in, env=environment, preexec_fn=parent_dies
        ).returncode
    except KeyboardInterrupt:
        return INTERRUPTED
    return code if code >= 0 else JOB_FAILED


def folder_of_paths(run: str, runs: Path) -> Path:
    """Where a run was launched; the folder here for checkpoints without their run."""
    try:
        return launched_in(find_run(run, runs))
    except RunFolderError:
        return Path()
