"""The events that the launcher adds to a program's own, and the listener of all of them."""

from dataclasses import dataclass
from typing import ClassVar

from launcher.core.states import EndReason, RunState
from trainer.contract.protocol import events as program
from trainer.contract.protocol.events import Event
from trainer.contract.protocol.wire import EventReader


@dataclass(frozen=True, kw_only=True)
class CommandStartedEvent(Event):
    """A command has opened an earlier run to resume it; the time before does not count."""

    kind: ClassVar = "command_started"


@dataclass(frozen=True, kw_only=True)
class LastHeardEvent(Event):
    """The `time` of the last event of any host before the launcher process was lost."""

    kind: ClassVar = "heard"


@dataclass(frozen=True, kw_only=True)
class StateEvent(Event):
    """The run has another state, or another reason for it."""

    kind: ClassVar = "state"
    state: RunState
    """The state, as in state.json."""
    reason: str | None = None
    """Why the run is in this state."""


@dataclass(frozen=True, kw_only=True)
class AttemptStartedEvent(Event):
    """An attempt begins; what it holds counts against the budget from its state `starting` on."""

    kind: ClassVar = "attempt_started"
    hosts: int
    """Number of hosts, spares included."""
    chips: int
    """Number of their chips; CPU devices count as chips."""
    price_per_chip_hour: float | None = None
    """Price of a chip in US dollars per hour; absent when it is not known."""


@dataclass(frozen=True, kw_only=True)
class AttemptEndedEvent(Event):
    """An attempt is over; `process` is the one whose end ended it, absent when all finished."""

    kind: ClassVar = "attempt_ended"
    end_reason: EndReason
    """Why it ended."""
    reason: str = ""
    """Description for the user, with the host where the end began."""
    step: int | None = None
    """The last step that this host completed in the attempt."""


@dataclass(frozen=True, kw_only=True)
class HangEvent(Event):
    """The program makes no progress, so the launcher ends the attempt."""

    kind: ClassVar = "hang"
    reason: str = ""
    """Description for the user: the hosts that are behind, since when, and in which phase."""


@dataclass(frozen=True, kw_only=True)
class SuspendedEvent(Event):
    """The program of `process` is stopped, as by SIGSTOP, so the launcher ends the attempt."""

    kind: ClassVar = "suspended"
    seconds: float | None = None
    """Seconds for which it has been stopped."""


@dataclass(frozen=True, kw_only=True)
class StragglerEvent(Event):
    """The host of `process` slows down the others."""

    kind: ClassVar = "straggler"
    factor: float | None = None
    """Its time divided by the median of all hosts."""
    message: str = ""
    """Description for the user."""


@dataclass(frozen=True, kw_only=True)
class HostExcludedEvent(Event):
    """The next attempt uses another host in place of that of `process`."""

    kind: ClassVar = "host_excluded"
    address: str = ""
    """Address of the host."""
    reason: str = ""
    """Why: it failed again, or was slow to the end."""

    def __str__(self) -> str:
        return f"{self.reason}: the next attempt uses another host in place of {self.address}"


@dataclass(frozen=True, kw_only=True)
class PreemptionNoticeEvent(Event):
    """The platform is about to take the host of `process` away."""

    kind: ClassVar = "preemption_notice"
    message: str = ""
    """The notice."""


@dataclass(frozen=True, kw_only=True)
class DisplayOffEvent(Event):
    """The launcher's output failed and was switched off; the run continues."""

    kind: ClassVar = "display_off"
    reason: str = ""
    """The error."""


LAUNCHER_EVENT_TYPES: tuple[type[Event], ...] = (
    CommandStartedEvent, LastHeardEvent, StateEvent, AttemptStartedEvent, AttemptEndedEvent,
    HangEvent, SuspendedEvent, StragglerEvent, HostExcludedEvent, PreemptionNoticeEvent,
    DisplayOffEvent,
)  # fmt: skip
"""All events that only the launcher writes."""
EVENT_TYPES = (*program.EVENT_TYPES, *LAUNCHER_EVENT_TYPES)
"""All events in events.jsonl."""
parse_event = EventReader(EVENT_TYPES).parse
"""Returns the event in a line of events.jsonl, or None when the line has none."""


class Listener:
    """Receives events, output lines and status text. The base class ignores them."""

    def on_event(self, event: Event) -> None:
        """Receives an event of a host's program, or of the launcher on a host's behalf."""

    def on_line(self, process: int, line: str) -> None:
        """Receives a line of a program's output."""

    def on_status(self, text: str) -> None:
        """Receives a description of what the launcher is doing."""
