"""The list of commands in `launch --help`, in sections."""

from typing import Any

from typer.core import TyperGroup

SECTIONS = {
    "Run": ("run", "resume", "attach", "stop"),
    "Look at runs": ("list", "status", "logs", "events", "report", "compare", "audit"),
    "Run many": ("sweep", "flow"),
    "Diagnose": ("why", "stacks", "exec", "profile", "debug"),
    "Plan": ("init", "plan", "rehearse", "schema", "doctor"),
    "Use checkpoints": ("checkpoints", "sample", "lineage"),
    "Keep a cluster": ("up", "down"),
}
"""The commands of each section, in the order of the help."""
MARGIN = 6
"""Columns around the names."""


class SectionedGroup(TyperGroup):
    """A group that lists its commands in `SECTIONS`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes one list of commands for each section."""
        width = max(map(len, self.commands))
        limit = formatter.width - width - MARGIN
        for title, names in SECTIONS.items():
            commands = [(name.ljust(width), self.commands[name]) for name in names]
            with formatter.section(title):
                formatter.write_dl([(n, c.get_short_help_str(limit)) for n, c in commands])
