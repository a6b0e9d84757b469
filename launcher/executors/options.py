"""Output options of the commands that start, resume or follow a run."""

from dataclasses import dataclass

from rich.console import Console


@dataclass(frozen=True)
class OutputOptions:
    """Whether to return once the run has started, and whether standard output is only JSON."""

    detached: bool
    as_json: bool
    assume_yes: bool = False
    """Whether costs are accepted without asking the user."""

    @property
    def console(self) -> Console:
        return Console(stderr=self.as_json)
