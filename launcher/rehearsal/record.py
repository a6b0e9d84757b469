"""The record of a rehearsed run: only the accounts of its time and cost, in memory."""

from collections.abc import Callable, Iterable
from pathlib import Path

from launcher.cluster.prices import chips, price_per_chip_hour
from launcher.core.events import AttemptEndedEvent, AttemptStartedEvent, StateEvent
from launcher.core.results import AttemptResult
from launcher.core.states import RunState
from launcher.planning.spec import LaunchSpec
from launcher.rehearsal.clock import VirtualClock
from launcher.runs.goodput import Account
from launcher.runs.timeline import LauncherEvent, Moment, PhaseEdge, StepDone
from launcher.runs.usage import UsageAccount
from trainer.contract.planning.plan import BasePlan
from trainer.contract.protocol.events import Event, PhaseEvent, StepEvent


class RehearsedRun:
    """Books the time and the cost of a run as the record of a real run does."""

    folder = Path("rehearsal")
    """No such folder exists, and nothing is written."""

    def __init__(self, clock: VirtualClock) -> None:
        self.account, self._usage = Account(), UsageAccount()
        self.attempts = 0
        self.detection_s = 0.0
        """Seconds from faults to the ends of their attempts, as far as they are booked as lost."""
        self.step = 0
        """The last step of the run that is done."""
        self._reported = (0, 0)
        """The last attempt with a step, and that step."""
        self._clock, self._state = clock, (RunState.UNKNOWN, "")
        self._observers: list[Callable[[Event], None]] = []

    def usage(self) -> UsageAccount:
        return self._usage

    def write_smaller_plans(self, plans: Iterable[BasePlan]) -> None: ...

    def observe(self, observer: Callable[[Event], None]) -> None:
        self._observers.append(observer)

    def begin(self, launch: LaunchSpec) -> None:
        world = launch.provisioned_world
        self.attempts = launch.attempt
        self.add_event(
            AttemptStartedEvent(
                time=self._clock.now_s,
                attempt=launch.attempt,
                hosts=world.processes,
                chips=chips(world),
                price_per_chip_hour=price_per_chip_hour(launch.cluster),
            )
        )
        self.set_state(RunState.PROVISIONING)

    def set_state(self, state: RunState, *, reason: str = "") -> None:
        if (state, reason) != self._state:
            self._state = state, reason
            now_s = self._clock.now_s
            self.add_event(StateEvent(time=now_s, attempt=self.attempts, state=state))

    def end_attempt(self, ending: AttemptResult) -> None:
        self.add_event(
            AttemptEndedEvent(
                time=self._clock.now_s,
                attempt=self.attempts,
                process=ending.process,
                end_reason=ending.end_reason,
                step=ending.step,
            )
        )

    def add_event(self, event: Event) -> None:
        self.account.take([Moment(self._clock.now_s, self._kept(event))])
        for observer in self._observers:
            observer(event)

    def _kept(self, event: Event) -> LauncherEvent | PhaseEdge | StepDone | None:
        """Returns what the account of a run keeps of an event, see `launcher.runs.timeline`.

        An event of no process is of all of them. The steps of process 0 count once.
        """
        match event:
            case StateEvent() | AttemptEndedEvent():
                return event
            case StepEvent() if not event.process:
                reported = (self.attempts, event.step)
                if reported <= self._reported:
                    return None
                self._reported = reported
                return StepDone(event.attempt, event.step, 0.0)
            case PhaseEvent() if not event.process:
                return PhaseEdge(event.attempt, event.name, event.edge == "begin")
            case _:
                return None
