"""Detects agents that no longer answer: they are lost with their hosts. Pure: no Ray, no clock."""

SILENCE_S = 10.0
"""Seconds of silence after which a host is lost. Agents answer polls once a second. Ray itself
takes 20 to 65 s to notice a host that is cut off; the hang detector would report it after 12 s."""
LONGEST_INTERVAL_S = 2.0
"""Most seconds that count between two polls: a driver that was itself stopped received nothing."""


class LostHostDetector:
    """Detects lost agents of one start of the gang. Times are the driver's monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._silent_s: dict[int, float] = {}
        self._polled_at = now

    def answered(self, process: int) -> None:
        """Records an answer of the agent of `process`, or the first question to it."""
        self._silent_s[process] = 0.0

    def forget(self, process: int) -> None:
        """Forgets a process whose agent is no longer polled."""
        self._silent_s.pop(process, None)

    def lost(self, now: float) -> list[int]:
        """Returns the processes whose hosts are silent for too long; call it in every iteration."""
        passed_s = min(now - self._polled_at, LONGEST_INTERVAL_S)
        self._polled_at = now
        for process in self._silent_s:
            self._silent_s[process] += passed_s
        return [process for process, silent_s in self._silent_s.items() if silent_s > SILENCE_S]
