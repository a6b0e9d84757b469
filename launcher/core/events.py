"""Who hears what hosts and launcher say while a run is under way."""

from typing import Any


class Listener:
    """Hears everything. This one does nothing with it."""

    def on_event(self, event: dict[str, Any]) -> None:
        """Of a host's program, or of the launcher on a host's behalf."""

    def on_line(self, process: int, line: str) -> None:
        """Of a program's output."""

    def on_status(self, text: str) -> None:
        """What the launcher does now."""
