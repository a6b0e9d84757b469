"""How a run is started, resumed or followed."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """The options of `launch run` and `launch resume` that do not change the plan."""

    fresh: bool = False
    """Whether an existing run of the same name is moved aside."""
    detach: bool = False
    """Whether to return as soon as the run has started, and keep it running in the background."""
    queue: bool = False
    """Whether the run waits until its cluster is free, and then runs in the background."""
    assume_yes: bool = False
    """Whether costs are accepted without asking the user."""
    compile_check: bool = True
    """Whether the TPU compiler first checks that the step fits, on real TPUs."""
    hot: bool = True
    """Whether the hosts load programs that `launch plan` has kept for the run."""
    as_json: bool = False
    """Whether standard output is only for JSON, so that progress goes to standard error."""
    quiet: bool = False
    """Whether no progress is shown."""
    host_limit: int | None = None
    """Most hosts that a resumed run may use at first; None for all of them."""
    overrides: Sequence[str] = ()
    """Changes to the job of a resumed run, as KEY=VALUE."""

    @property
    def console(self) -> Console:
        """The console for progress. In a notebook it prints plain lines, without a live panel."""
        return Console(stderr=self.as_json, quiet=self.quiet)
