"""Traces some steps for TensorBoard, XProf and Perfetto, into the run's folder."""

import signal
from pathlib import Path

import jax

from trainer.contract.config.job import Job
from trainer.contract.protocol import profile_request
from trainer.distributed.process_env import Environment


class Profiler:
    """Traces the steps that the job names, on the processes that it names; and steps on request."""

    def __init__(self, job: Job, environment: Environment, run_dir: Path) -> None:
        is_named = job.profile is not None and environment.process in job.profile.processes
        self._steps = job.profile.steps if job.profile and is_named else None
        self._last_step = job.last_step
        own = run_dir, environment.process, environment.processes_per_host
        self._folder, self._request = profile_request.folder_of(*own), profile_request.path_of(*own)
        self._is_asked = False
        self._last: int | None = None
        """The last step of the trace in progress."""

    def accept_requests(self) -> None:
        """Traces steps after SIGUSR2, see `profile_request`. Only for the main thread."""
        signal.signal(signal.SIGUSR2, self._ask)

    @property
    def is_on(self) -> bool:
        return self._last is not None

    def before(self, step: int) -> None:
        """Starts the trace when due. A run that resumes within the steps traces the rest."""
        if self.is_on:
            return
        if self._steps and self._steps[0] <= step <= self._steps[1]:
            self._start(self._steps[1])
        elif self._is_asked:
            self._is_asked = False
            if steps := profile_request.read(self._request):
                self._start(min(step + steps - 1, self._last_step))

    def ends_with(self, step: int) -> bool:
        """Returns whether `step` is the last; the devices must finish it before `end`."""
        return step == self._last

    def end(self) -> None:
        """Writes the trace, if there is one."""
        if self.is_on:
            jax.profiler.stop_trace()
            self._last = None
            print(f"profile written to {self._folder}", flush=True)
            if not self._is_asked:  # else a new request has come meanwhile
                self._request.unlink(missing_ok=True)

    def _start(self, last: int) -> None:
        jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
        self._last = last

    def _ask(self, *_: object) -> None:
        self._is_asked = True
