"""One run of a group: starts, resumes, follows and stops it.

All state is in the folder of the run: a group that was killed continues where its runs are. Runs
are detached, so that they survive the command; the next one finds them running and waits for them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launcher import api
from launcher.commands.groups.progress import Progress
from launcher.core.errors import HostError, JobError, SlipwayError, error_of
from launcher.core.exit_codes import JOB_FAILED
from launcher.executors.options import LaunchOptions
from launcher.planning.spec import LaunchSpec
from launcher.runs.status import describe


class Member:
    """A run of a group, as far as this command has followed it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.error: SlipwayError | None = None
        """Why this command does not continue the run; None while it does."""
        self.progress: Progress | None = None
        """The run when it was last read; None before it has started."""
        self._is_begun = False

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def is_running(self) -> bool:
        return self.progress is not None and self.progress.is_running

    def read(self) -> None:
        """Reads the run's folder."""
        self.progress = Progress.read(self.folder)
        if self.is_running:
            self._is_begun = True

    def has_reached(self, step: int | None) -> bool:
        """Reads the run, and returns whether it has come to a step; for None, to its end.

        Records the error of a run that has ended before, after this command has seen it run.
        """
        self.read()
        if self.progress is None or self.is_running:
            return False
        if self.progress.has_reached(step):
            self._is_begun = False
            return True
        if self._is_begun:
            status = self.progress.status
            self.error = error_of(
                status.exit_code or JOB_FAILED, describe(status), run_dir=self.folder
            )
        return False

    def start(
        self, spec: LaunchSpec, options: LaunchOptions, resume_overrides: Sequence[str] = ()
    ) -> None:
        """Starts the run, or resumes it with overrides; records an error."""
        try:
            if self.progress is None:
                api.start(spec, options)
            else:
                ref = spec.cluster_ref
                where = (ref.name, ref.simulate, ref.simulate_hosts)
                api.restart(self.folder, where, replace(options, overrides=resume_overrides))
            self._is_begun = True
        except SlipwayError as error:
            self.read()
            if not self.is_running:  # else a process that an earlier command started was faster
                self.error = error

    def stop(self) -> None:
        """Stops the running run with a checkpoint; records an error."""
        assert self.progress
        try:
            self.progress.handle.stop()
        except (HostError, JobError) as error:
            self.error = error
        self.read()
