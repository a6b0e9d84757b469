"""Traces some steps for TensorBoard, XProf and Perfetto, into the run's folder."""

from pathlib import Path

import jax

from trainer.contract.config.job import Job
from trainer.distributed.process_env import Environment


class Profiler:
    """Traces the steps that the job names, on the processes that it names; else does nothing."""

    def __init__(self, job: Job, environment: Environment, run_dir: Path) -> None:
        wanted = job.profile is not None and environment.process in job.profile.processes
        self._settings = job.profile if wanted else None
        self._folder = run_dir / "profile" / f"host-{environment.process:04d}"
        self.is_on = False

    def before(self, step: int) -> None:
        """Starts the trace when due. A run that resumes within the steps traces the rest."""
        if self._settings is None or self.is_on:
            return
        first, last = self._settings.steps
        if first <= step <= last:
            jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
            self.is_on = True

    def ends_with(self, step: int) -> bool:
        """Returns whether `step` is the last; the devices must finish it before `end`."""
        return self._settings is not None and self.is_on and step == self._settings.steps[1]

    def end(self) -> None:
        """Writes the trace, if there is one."""
        if self.is_on:
            jax.profiler.stop_trace()
            self.is_on = False
            print(f"profile written to {self._folder}", flush=True)
