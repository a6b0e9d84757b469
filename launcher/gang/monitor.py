"""Callbacks for a running gang, and the orderly or immediate stop of its programs."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.core.results import Hang, ProcessExit
from launcher.requests.inbox import Received
from trainer.contract.protocol.exit_codes import ProgramExit

GRACE_S = 2.0
"""Seconds that a program has to end after a stop request, where nothing else is known."""
HANG_GRACE_S = 0.3
"""The same after a hang: most programs are stuck where they cannot react."""
ENDING_TIMEOUT_S = 20.0


class GangMonitor:
    """Callbacks for a running program. The base class lets it run."""

    grace_s = GRACE_S
    """Seconds that the program has to save and end after a stop request."""

    def should_stop(self) -> bool:
        """Returns whether all hosts should begin an orderly stop now."""
        return False

    def on_start(self) -> None:
        """Handles the start of the program on all hosts, which can repeat: see PORT_ATTEMPTS."""

    def wants_standby(self) -> bool:
        """Returns whether the hosts should prepare standby processes for the next attempt now."""
        return False

    def hang(self) -> Hang | None:
        """Returns a hang once the program makes no more progress; called a few times a second."""
        return None

    def new_requests(self) -> list[Received]:
        """Returns the requests of commands that have arrived since the last call."""
        return []

    def on_exit(self, process: int) -> None:
        """Handles the end of the program of `process`."""


class Stop:
    """Ends the programs of a gang: in order on request, immediately when one fails."""

    def __init__(self, agents: Sequence[Any], monitor: GangMonitor) -> None:
        self.give_up_at = float("inf")
        self._agents, self._monitor = agents, monitor
        self._in_order = self._immediately = False

    @property
    def begun(self) -> bool:
        """Whether a stop has begun: a program without progress then has only its grace left."""
        return self._in_order or self._immediately

    def check(self, exits: Mapping[int, ProcessExit]) -> None:
        """Stops the programs when the hosts' exits or the monitor require it."""
        if self._immediately:
            return
        if not all(ended.in_order for ended in exits.values()):
            self.immediately()
        elif not self._in_order and (self._monitor.should_stop() or _is_stopping(exits)):
            self._in_order = True
            grace_s = self._monitor.grace_s
            self._stop(grace_s, grace_s + ENDING_TIMEOUT_S)

    def immediately(self, grace_s: float | None = None) -> None:
        """Stops the programs without time to save.

        They have `grace_s` to end; None for their own, see `HostProgram`.
        """
        self._immediately = True
        self._stop(grace_s, ENDING_TIMEOUT_S)

    def _stop(self, grace_s: float | None, timeout_s: float) -> None:
        self.give_up_at = time.monotonic() + timeout_s
        for agent in self._agents:
            agent.stop.remote(grace_s)


def _is_stopping(exits: Mapping[int, ProcessExit]) -> bool:
    """Returns whether a host has saved and ended without a request from the launcher."""
    return any(ended.code == ProgramExit.STOPPED for ended in exits.values())
