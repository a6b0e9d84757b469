"""Monitors whether a Ray head that another process owns still listens."""

import socket
import time

CONNECT_TIMEOUT_S = 1.0
POLL_INTERVAL_S = 2.0
UNREACHABLE_S = 10.0
"""Seconds without a connection after which the head counts as gone.

It covers brief network failures; Ray itself ends a driver after 60 s without a head.
"""


class HeadMonitor:
    """Monitors the head at `address`, "host:port", at most every POLL_INTERVAL_S seconds."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._poll_at = 0.0
        self._silent_since: float | None = None
        self._refused = False

    @property
    def is_gone(self) -> bool:
        """Whether the head refuses connections or has been unreachable for UNREACHABLE_S."""
        now = time.monotonic()
        if now >= self._poll_at:
            self._poll_at = now + POLL_INTERVAL_S
            self._poll(now)
        silent_s = 0.0 if self._silent_since is None else now - self._silent_since
        return self._refused or silent_s >= UNREACHABLE_S

    def _poll(self, now: float) -> None:
        why = unreachable(self._address, CONNECT_TIMEOUT_S)
        self._refused = isinstance(why, ConnectionRefusedError)
        if why is None:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now


def unreachable(address: str, timeout_s: float) -> OSError | None:
    """Returns why no connection to "host:port" can be made. Returns None when one can."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError as error:
        return error
    return None
