"""Watches one attempt: what its programs report, and when they have to stop."""

from typing import TYPE_CHECKING

from launcher.controller.surroundings import Clock, Display
from launcher.core.events import PreemptionNoticeEvent
from launcher.core.results import Hang
from launcher.core.signals import Interrupts
from launcher.core.states import EndReason
from launcher.gang.monitor import GangMonitor
from launcher.health.hangs import HangDetector, Limits
from launcher.planning.spec import LaunchSpec
from launcher.requests.inbox import Received
from trainer.contract.protocol.events import CheckpointSavedEvent, Event, StepEvent

if TYPE_CHECKING:
    from launcher.controller.controller import RunController

HOSTS_POLL_INTERVAL_S = 1.0


class AttemptMonitor(GangMonitor):
    """Monitors one attempt: stop requests, hangs, stragglers, hosts that came back."""

    def __init__(
        self,
        launch: LaunchSpec,
        attempts: "RunController",
        interrupts: Interrupts,
        display: Display,
    ) -> None:
        self.grace_s = launch.grace_s
        self.asked: EndReason | None = None
        """Why the hosts were asked to stop; None when they were not."""
        self.steps: dict[int, int] = {}
        """Last completed step of each host that reports steps."""
        self._launch = launch
        self._attempts, self._interrupts, self._display = attempts, interrupts, display
        self._clock = attempts.clock
        self._limits = Limits.of(launch.job.deadlines)
        self._sends_events = launch.sends_events
        self._standby_after_s = launch.job.retries.standby_after_s
        self._first_step_s: float | None = None
        self.on_start()
        self._has_saved = self._is_about_to_go = False
        self._hosts_poll = _Every(HOSTS_POLL_INTERVAL_S, self._clock)
        self._spares_poll = _Every(HOSTS_POLL_INTERVAL_S, self._clock)

    def on_event(self, event: Event) -> None:
        self._watch.on_event(event, self._clock.monotonic())
        match event:
            case StepEvent() if event.process is not None:
                self._first_step_s = self._first_step_s or self._clock.monotonic()
                self.steps[event.process] = event.step
            case CheckpointSavedEvent():
                self._has_saved = True
            case PreemptionNoticeEvent():
                self._is_about_to_go = True
            case _:
                pass

    def on_start(self) -> None:
        watched = self._attempts.watched(self._launch)
        self._watch = HangDetector(
            watched,
            self._limits,
            expects_events=self._sends_events,
            processes_per_host=self._launch.plan.world.processes_per_host,
        )

    def on_exit(self, process: int) -> None:
        self._watch.on_end(process)

    def should_stop(self) -> bool:
        """Returns whether the user, the budget, a notice or the supervisor requests a stop.

        The supervisor requests one to resume on fewer hosts, or on more once the attempt has saved.
        """
        if self._interrupts.asked:
            self._display.stopping()
            self.asked = EndReason.STOPPED
        elif self._attempts.is_over_budget():
            self._display.stopping("the budget is used up")
            self.asked = EndReason.BUDGET
        elif self._is_about_to_go:
            self.asked = EndReason.PREEMPTED
        elif self._attempts.wants_to_shrink():
            self.asked = EndReason.SHRUNK
        elif self._has_saved and self._hosts_poll.is_due() and self._attempts.wants_to_grow():
            self.asked = EndReason.RESIZED
        return self.asked is not None

    def wants_standby(self) -> bool:
        """Returns whether the program has run for long enough that its next start may matter."""
        began_s, after_s = self._first_step_s, self._standby_after_s
        if began_s is None or after_s is None or self.asked:
            return False
        return self._clock.monotonic() - began_s >= after_s

    def new_requests(self) -> list[Received]:
        return self._attempts.new_requests()

    @property
    def slow(self) -> frozenset[int]:
        """The hosts that are stragglers now."""
        return self._watch.slow

    def hang(self) -> Hang | None:
        self._attempts.check_hosts()
        if self._spares_poll.is_due():
            self._attempts.keep_spares(self._launch)
        for straggler in self._watch.stragglers(self._clock.monotonic()):
            self._attempts.on_straggler(straggler)
        return self._watch.poll(self._clock.monotonic())


class _Every:
    """A clock that is due once per interval at most, for what may query the cluster."""

    def __init__(self, interval_s: float, clock: Clock) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._last_s = 0.0

    def is_due(self) -> bool:
        now = self._clock.monotonic()
        if now - self._last_s < self._interval_s:
            return False
        self._last_s = now
        return True
