"""`launch sweep`: starts, resumes and awaits the runs of the points."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from launcher.commands.groups.member import Member
from launcher.commands.sweep_plan import PlannedPoint, SweepPlan
from launcher.core.signals import Interrupts
from launcher.core.wait import wait_until
from launcher.executors.options import LaunchOptions
from launcher.planning.spec import LaunchSpec
from launcher.runs.status import describe
from launcher.sweep import halving
from trainer.contract.config.job import Job
from trainer.contract.config.yaml import dump_inline

POLL_INTERVAL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """How the points of a sweep are run."""

    jobs: int
    """Number of points that run at the same time."""
    assume_yes: bool
    compile_check: bool


class PointRun(Member):
    """The run of one point, as far as this sweep has followed it."""

    def __init__(self, planned: PlannedPoint) -> None:
        super().__init__(planned.spec.run_dir)
        self.planned, self.point, self.shape = planned, planned.point, planned.shape
        self._reached: set[int | None] = set()

    def is_done_with(self, step: int | None) -> bool:
        """Returns whether the point has reached a step, or ended before it in this sweep.

        `step`: None for the end of the job.
        """
        if step in self._reached or self.error:
            return True
        if self.has_reached(step or self.planned.spec.steps):
            self._reached.add(step)
        return step in self._reached or self.error is not None

    def loss_at(self, step: int) -> float:
        """Returns the evaluation loss at a step; infinity for a point that has no such loss."""
        if self.error or self.progress is None:
            return math.inf
        return self.progress.evaluations.get(step, math.inf)

    def run_until(self, step: int | None, options: LaunchOptions) -> None:
        """Starts or resumes the run, up to a step; records an error."""
        spec = self.planned.until(step)
        self.start(spec, options, _until(spec))


class SweepRunner:
    """Runs a sweep to its end. Its output goes to `on_line`."""

    def __init__(
        self,
        plan: SweepPlan,
        options: SweepOptions,
        interrupts: Interrupts,
        on_line: Callable[[str], None],
    ) -> None:
        self.runs = [PointRun(planned) for planned in plan.points]
        self._plan, self._options = plan, options
        self._interrupts, self._on_line = interrupts, on_line

    def run(self) -> None:
        """Runs all points, or returns after a signal."""
        with self._interrupts.stopping_in_order():
            wait_until(self._poll, poll_interval_s=POLL_INTERVAL_S)

    def _poll(self) -> bool:
        """Starts what can start; returns whether the sweep has ended or is interrupted."""
        if self._interrupts.asked:
            return True
        before = [run for run in self.runs if run.is_running]
        step, missing = self._missing()
        for run in before:
            if not run.is_running and run.progress:
                self._on_line(describe(run.progress.status))
        for run in self._startable(missing):
            if self._interrupts.asked:
                return True
            self._start(run, step)
        return not missing

    def _missing(self) -> tuple[int | None, list[PointRun]]:
        """Returns the step that points run to now, None for their end, and those on the way."""
        remaining = self.runs
        *comparisons, _ = self._plan.rungs or [None]
        for step in comparisons:
            assert step is not None
            if missing := [run for run in remaining if not run.is_done_with(step)]:
                return step, missing
            losses = {number: run.loss_at(step) for number, run in enumerate(remaining)}
            remaining = [remaining[number] for number in halving.survivors(losses)]
        return None, [run for run in remaining if not run.is_done_with(None)]

    def _startable(self, missing: Sequence[PointRun]) -> Iterator[PointRun]:
        """Yields points for the free places: one of each shape first, so that it compiles once."""
        running = [run for run in self.runs if run.is_running]
        free = self._options.jobs - len(running)
        compiling = {run.shape for run in running} - self._compiled
        for run in missing:
            if free > 0 and not run.is_running and run.shape not in compiling:
                free -= 1
                compiling |= {run.shape} - self._compiled
                yield run

    @property
    def _compiled(self) -> set[str]:
        """The shapes of which a point has done a step."""
        return {
            run.shape
            for run in self.runs
            if run.progress is not None and run.progress.status.step is not None
        }

    def _start(self, run: PointRun, step: int | None) -> None:
        verb = "starts" if run.progress is None else "continues"
        until = "" if step is None else f", until step {step}"
        self._on_line(f"{run.point.name} {verb}{until}")
        options = LaunchOptions(
            detach=True,
            quiet=True,
            assume_yes=self._options.assume_yes,
            compile_check=self._options.compile_check and run.shape not in self._compiled,
        )
        run.run_until(step, options)
        run.read()


def _until(spec: LaunchSpec) -> list[str]:
    """Returns the override with which a run continues to the last step of a launch."""
    if not isinstance(spec.job, Job):
        return []
    return [f"stop_after_step={dump_inline(spec.job.stop_after_step)}"]
