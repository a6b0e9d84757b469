"""`launch flow`: starts, resumes and awaits the runs of the steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.commands.flow_plan import FlowPlan
from launcher.commands.flow_steps import FlowStep
from launcher.commands.groups.member import Member
from launcher.core.errors import SlipwayError
from launcher.core.signals import Interrupts
from launcher.core.wait import wait_until
from launcher.executors.options import LaunchOptions
from launcher.runs.status import describe
from trainer.contract.config.job import Job

POLL_INTERVAL_S = 0.5


@dataclass(frozen=True, kw_only=True)
class FlowOptions:
    """How the steps of a flow are run."""

    jobs: int
    """Number of steps that run at the same time."""
    assume_yes: bool
    compile_check: bool


class StepRun(Member):
    """The run of one step, as far as this flow has followed it."""

    def __init__(self, step: FlowStep, plan: FlowPlan) -> None:
        super().__init__(plan.runs / step.name)
        self.step = step
        self.cancelled_by = ""
        """The step that did not finish, so that this one does not start; "" for none."""
        self.has_finished = False
        self._runs = plan.runs

    @property
    def is_over(self) -> bool:
        """Whether this flow does nothing more for the step."""
        return self.has_finished or self.has_no_end

    @property
    def has_no_end(self) -> bool:
        """Whether the step does not finish in this flow."""
        return self.error is not None or bool(self.cancelled_by)

    def update(self) -> None:
        """Reads the run, and records its end."""
        if not self.is_over:
            self.has_finished = self.has_reached(self.steps)

    @property
    def steps(self) -> int | None:
        """Number of steps of the run; None for a command."""
        job = self.step.job.value
        return job.last_step if isinstance(job, Job) else None

    def begin(self, options: LaunchOptions) -> None:
        """Starts or resumes the run; records an error."""
        try:
            spec = self.step.plan(self._runs)
        except SlipwayError as error:
            self.error = error
        else:
            self.start(spec, options)


class FlowRunner:
    """Runs a flow to its end. Its output goes to `on_line`."""

    def __init__(
        self,
        plan: FlowPlan,
        options: FlowOptions,
        interrupts: Interrupts,
        on_line: Callable[[str], None],
    ) -> None:
        self.runs = [StepRun(step, plan) for step in plan.steps]
        self._by_name = {run.name: run for run in self.runs}
        self._options, self._interrupts, self._on_line = options, interrupts, on_line

    def run(self) -> None:
        """Runs all steps, or returns after a signal."""
        with self._interrupts.stopping_in_order():
            wait_until(self._poll, poll_interval_s=POLL_INTERVAL_S)

    def _poll(self) -> bool:
        """Starts what can start; returns whether the flow has ended or is interrupted."""
        if self._interrupts.asked:
            return True
        for run in self.runs:
            self._update(run)
        for run in self._startable():
            if self._interrupts.asked:
                return True
            self._start(run)
        return all(run.is_over for run in self.runs)

    def _update(self, run: StepRun) -> None:
        """Reads a step, and cancels it when one that it waits for does not finish."""
        if run.is_over:
            return
        before = run.is_running
        run.update()
        if before and not run.is_running and run.progress:
            self._on_line(describe(run.progress.status))
        without_end = [need for need in run.step.needs if self._by_name[need].has_no_end]
        if without_end and not run.is_running and not run.is_over:
            run.cancelled_by = without_end[0]
            self._on_line(f"{run.name} is cancelled: {run.cancelled_by} did not finish")

    def _startable(self) -> Sequence[StepRun]:
        """Returns the steps that wait for nothing, as many as there are free places."""
        running = sum(run.is_running for run in self.runs)
        ready = [
            run
            for run in self.runs
            if not run.is_running and not run.is_over
            if all(self._by_name[need].has_finished for need in run.step.needs)
        ]
        return ready[: max(0, self._options.jobs - running)]

    def _start(self, run: StepRun) -> None:
        self._on_line(f"{run.name} {'starts' if run.progress is None else 'continues'}")
        options = LaunchOptions(
            detach=True,
            quiet=True,
            assume_yes=self._options.assume_yes,
            compile_check=self._options.compile_check,
        )
        run.begin(options)
        run.read()
        if run.error:
            self._on_line(f"{run.name} did not start: {run.error}")
