"""`launch sample`: generates text from a checkpoint, in a child process that uses JAX."""

from dataclasses import dataclass
from pathlib import Path

from launcher.commands.trainer_tool import run_tool
from launcher.runs.checkpoints import Entry
from launcher.runs.folder import RunFolderError, find_run, launched_in
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


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """A text that the model of a checkpoint has generated."""

    step: int
    """Step of the checkpoint."""
    checkpoint: str
    """The checkpoint's folder."""
    text: str
    """The prompt and the text that follows it."""


def sample(entry: Entry, request: SampleRequest, start_in: Path) -> SampleResult:
    """Generates text. Raises as `run_tool` does.

    `start_in` is the folder that the job's relative paths start from.
    """
    folder = str(entry.folder if is_url(entry.folder) else entry.folder.absolute())
    printed = run_tool("sample_checkpoint", [folder, *request.arguments], start_in)
    return SampleResult(step=entry.step, checkpoint=folder, text=printed.removesuffix("\n"))


def folder_of_paths(run: str, runs: Path) -> Path:
    """Returns the folder that a run was launched in; the current one for checkpoints alone."""
    try:
        return launched_in(find_run(run, runs))
    except RunFolderError:
        return Path()
