"""What has become of a run of a group, from its folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from launcher import api
from launcher.core.events import parse_event
from launcher.core.states import RunState
from launcher.executors.handle import RunHandle
from launcher.runs.registry import is_run
from launcher.runs.status import RunStatus
from trainer.contract.config.command import load_job
from trainer.contract.config.job import Job
from trainer.contract.protocol.events import CompiledEvent
from trainer.contract.records import metrics_file

WAITING_STATES = (RunState.QUEUED, RunState.REMOTE)
"""States in which a run that no process of this machine drives has not ended."""


@dataclass(frozen=True)
class Progress:
    """A run when its folder was read."""

    handle: RunHandle
    status: RunStatus

    @classmethod
    def read(cls, folder: Path) -> "Progress | None":
        """Reads the run in a folder; None when it has not been started."""
        if not is_run(folder):
            return None
        handle = api.find_run(folder)
        return cls(handle, handle.status())

    @property
    def is_running(self) -> bool:
        return self.status.is_alive or self.status.state in WAITING_STATES

    def has_reached(self, step: int | None) -> bool:
        """Returns whether the run has come to a step, in order; for None, whether it finished."""
        is_finished = self.status.state is RunState.FINISHED and not self.is_running
        if step is None or self._last_step is None:
            return is_finished
        return self._last_step > step or (self._last_step == step and is_finished)

    @cached_property
    def _last_step(self) -> int | None:
        """The step with which the run ends, as it was last started."""
        job = load_job(self.handle.folder / "job.yaml").value
        return job.last_step if isinstance(job, Job) else None

    @cached_property
    def evaluations(self) -> dict[int, float]:
        """Evaluation losses by step."""
        path = self.handle.folder / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return {
            line["step"]: line["eval_loss"]
            for line in metrics_file.curve(lines)
            if "eval_loss" in line
        }

    @property
    def seconds(self) -> float:
        """Seconds of the run, over all attempts."""
        return self.handle.goodput().wall_s

    @property
    def compilations(self) -> int:
        """Number of programs that were compiled, not read from the cache."""
        return sum(not event.from_cache for event in self._compiled)

    @property
    def _compiled(self) -> Iterator[CompiledEvent]:
        path = self.handle.folder / "events.jsonl"
        with path.open("rb") as lines:
            for line in lines:
                if b'"compiled"' in line and isinstance(event := parse_event(line), CompiledEvent):
                    yield event
