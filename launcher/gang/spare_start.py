"""Starts agents on spare hosts beside a running program, without waiting for them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from launcher.core.errors import HostError
from launcher.gang.reservation import TAKE_TIMEOUT_S, Reservation, Seat
from launcher.gang.spawn import AgentStart

PLACE_S = 0.01
"""Seconds to wait for Ray's answer to whether a reservation is placed."""


class SpareStart:
    """Spare hosts, some of them just requested from Ray, and their agents while they start."""

    def __init__(
        self,
        held: Mapping[int, Seat],
        reservation: Reservation | None,
        start: Callable[[Mapping[int, Seat]], AgentStart],
    ) -> None:
        """Creates a start in the seats `held` and in those of `reservation`."""
        self.reservation = reservation
        added = reservation.seats if reservation is not None else []
        first = max(held, default=-1) + 1
        self.seats = {**held, **dict(enumerate(added, first))}
        self._start_agents = start
        self._agents: AgentStart | None = None
        self._give_up_at = time.monotonic() + TAKE_TIMEOUT_S

    def poll(self) -> Mapping[int, Any] | None:
        """Returns the agent of each seat once all are up, and None before.

        Raises HostError when Ray does not place the reservation or an agent does not start.
        """
        if self._agents is None:
            if self.reservation and not self.reservation.is_placed_within(PLACE_S):
                if time.monotonic() >= self._give_up_at:
                    raise HostError(f"not reserved within {TAKE_TIMEOUT_S:.0f} s")
                return None
            self._agents = self._start_agents(self.seats)
        self._agents.poll(0.0)
        return None if self._agents.awaited else self._agents.agents

    def end(self) -> None:
        """Ends the agents and releases the reservation."""
        if self._agents is not None:
            self._agents.kill()
        if self.reservation is not None:
            self.reservation.release()
