"""What a gang is looked after by, and how it is stopped."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.core.results import EXIT_STOPPED_ON_REQUEST, Hang, ProcessExit

GRACE_S = 2.0
"""What a program has to end when another one failed."""
ENDING_TIMEOUT_S = 20.0


class GangMonitor:
    """Looks after a program while it runs. This one lets it run."""

    grace_s = GRACE_S
    """What the program has to save and end when it is asked to stop."""

    def should_stop(self) -> bool:
        """Whether all hosts should stop in order now."""
        return False

    def on_start(self) -> None:
        """The program starts on all hosts, perhaps not for the first time: see PORT_ATTEMPTS."""

    def hang(self) -> Hang | None:
        """Whether the program will not get on any more; asked about twice a second."""
        return None

    def on_exit(self, process: int) -> None:
        """That host's program has ended."""


class Stop:
    """Ends the programs of a gang: in order when that is asked for, at once when one fails."""

    def __init__(self, agents: Sequence[Any], attendant: GangMonitor) -> None:
        self.give_up_at = float("inf")
        self._agents, self._attendant = agents, attendant
        self._in_order = self._at_once = False

    @property
    def begun(self) -> bool:
        """From then on a program that does not get on is waited for no longer than its grace."""
        return self._in_order or self._at_once

    def look(self, exits: Mapping[int, ProcessExit]) -> None:
        """Act on what the hosts' ends and the attendant say now."""
        if self._at_once:
            return
        if not all(ended.in_order for ended in exits.values()):
            self.at_once()
        elif not self._in_order and (self._attendant.should_stop() or _is_stopping(exits)):
            self._in_order = True
            grace_s = self._attendant.grace_s
            self._stop(grace_s, grace_s + ENDING_TIMEOUT_S)

    def at_once(self) -> None:
        """Without time to save."""
        self._at_once = True
        self._stop(None, ENDING_TIMEOUT_S)

    def _stop(self, grace_s: float | None, timeout_s: float) -> None:
        self.give_up_at = time.monotonic() + timeout_s
        for agent in self._agents:
            agent.stop.remote(grace_s)


def _is_stopping(exits: Mapping[int, ProcessExit]) -> bool:
    """Whether a host has saved and ended although nobody here asked."""
    return any(ended.code == EXIT_STOPPED_ON_REQUEST for ended in exits.values())
