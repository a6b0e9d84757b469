"""What a run has used of its hosts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """Time and cost of a run over all attempts, while it held hosts."""

    hours: float = 0.0
    chip_hours: float = 0.0
    dollars: float = 0.0
    """Cost of the chip hours with a known price."""
    unpriced_chip_hours: float = 0.0
    """Chip hours of attempts without a known price."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.hours + other.hours,
            self.chip_hours + other.chip_hours,
            self.dollars + other.dollars,
            self.unpriced_chip_hours + other.unpriced_chip_hours,
        )

    @property
    def cost(self) -> float | None:
        """The whole cost in US dollars; None when a part of it is not known."""
        return None if self.unpriced_chip_hours else self.dollars

    def result(self) -> "UsageResult":
        """Returns the usage for a command's JSON output."""
        return UsageResult(hours=self.hours, chip_hours=self.chip_hours, dollars=self.cost)


@dataclass(frozen=True, kw_only=True)
class UsageResult:
    """Time and cost of a run over all attempts, while it held hosts."""

    hours: float
    chip_hours: float
    dollars: float | None
    """The whole cost in US dollars; None when a part of it is not known."""
