"""How a command tells of a run that another process runs."""

from dataclasses import dataclass

from rich.console import Console


@dataclass(frozen=True)
class OutputOptions:
    """Whether it is let go of at once, and whether standard output is for JSON alone."""

    detached: bool
    as_json: bool
    assume_yes: bool = False
    """To what it costs: nothing is asked."""

    @property
    def console(self) -> Console:
        return Console(stderr=self.as_json)
