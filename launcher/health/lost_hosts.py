"""Which agents have stopped answering: they are lost with their hosts. Pure: no Ray, no clock."""

SILENCE_S = 10.0
"""Polls are answered once a second; Ray itself takes 20 to 65 s to notice a host that is cut off,
and the watch, which would call this a hang, 12 s."""
LONGEST_LOOK_S = 2.0
"""Of the time between two looks no more counts: a driver that was stopped itself heard nothing."""


class LostHostDetector:
    """Of the agents of one start of the gang. Times are the driver's monotonic seconds."""

    def __init__(self, processes: int, now: float) -> None:
        self._silent_s = dict.fromkeys(range(processes), 0.0)
        self._looked_at = now

    def broken(self, process: int) -> None:
        """Its agent has answered."""
        self._silent_s[process] = 0.0

    def over(self, process: int) -> None:
        """Nobody asks its agent any more."""
        self._silent_s.pop(process, None)

    def lost(self, now: float) -> list[int]:
        """Hosts that have been silent for too long; ask at every turn."""
        passed_s = min(now - self._looked_at, LONGEST_LOOK_S)
        self._looked_at = now
        for process in self._silent_s:
            self._silent_s[process] += passed_s
        return [process for process, silent_s in self._silent_s.items() if silent_s > SILENCE_S]
