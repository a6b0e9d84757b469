"""The listener of a run's events, output and status."""

from typing import Any


class Listener:
    """Receives events, output lines and status text. The base class ignores them."""

    def on_event(self, event: dict[str, Any]) -> None:
        """Receives an event of a host's program, or of the launcher on a host's behalf."""

    def on_line(self, process: int, line: str) -> None:
        """Receives a line of a program's output."""

    def on_status(self, text: str) -> None:
        """Receives a description of what the launcher is doing."""
