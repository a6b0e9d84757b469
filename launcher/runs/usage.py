"""What a run has used of its hosts, from its events.

Time counts while the run holds hosts: from the state `starting` of an attempt to the end of the
command, waits between attempts included. Waiting for hosts of the first attempt does not count, and
neither does the time between two commands.
"""

from dataclasses import dataclass, field

from launcher.core.events import (
    AttemptStartedEvent,
    CommandStartedEvent,
    StateEvent,
)
from launcher.core.states import RunState
from launcher.core.usage import Usage
from launcher.runs.timeline import driver_time
from trainer.contract.protocol.events import Event

HOUR_S = 3600.0


CHANGES = (AttemptStartedEvent, CommandStartedEvent, StateEvent)
"""Types of the events after which time may count differently."""


@dataclass
class UsageAccount:
    """Adds up the time of a run's attempts, with their chips and prices."""

    used: Usage = field(default_factory=Usage)
    """Usage until the last change."""
    since: float = 0.0
    """Time of the last change, in seconds since the epoch."""
    latest: float = 0.0
    """Time of the last event."""
    is_holding: bool = False
    """Whether the run holds hosts."""
    chips: int = 0
    price: float | None = None
    """Price of a chip of the current attempt in US dollars per hour; None when unknown."""

    def add(self, event: Event) -> None:
        """Adds one event. Events come in the order in which they were written."""
        time = driver_time(event)
        if time is None:
            return
        if isinstance(event, CommandStartedEvent):
            self._book(self.latest)
            self.is_holding = False
        self.latest = max(self.latest, time)
        if isinstance(event, CHANGES):
            self._book(self.latest)
        match event:
            case AttemptStartedEvent():
                self.chips, self.price = event.chips, event.price_per_chip_hour
            case StateEvent(state=RunState.STARTING):
                self.is_holding = True
            case StateEvent() if event.state.is_terminal or event.state is RunState.QUEUED:
                self.is_holding = False
            case _:
                pass

    def until(self, now: float | None = None) -> Usage:
        """Returns the usage until `now` or, of a run that has ended, until its last event."""
        return self._with(self.latest if now is None else now)

    def _book(self, time: float) -> None:
        self.used, self.since = self._with(time), max(self.since, time)

    def _with(self, time: float) -> Usage:
        hours = max(0.0, time - self.since) / HOUR_S if self.is_holding else 0.0
        chip_hours = hours * self.chips
        if self.price is None:
            return self.used + Usage(hours, chip_hours, unpriced_chip_hours=chip_hours)
        return self.used + Usage(hours, chip_hours, chip_hours * self.price)
