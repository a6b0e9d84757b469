"""The collectives of a compiled step, as a table."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from launcher.core.formatting import format_bytes
from trainer.contract.protocol.reports import Collective, Share

SHOWN = 0.01
"""Share of all bytes below which a collective is merged into the row "others"."""


def table(collectives: Sequence[Collective]) -> Table:
    """Returns a row per collective: its count, bytes and time on a device in one step."""
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("collective", "of", "pass", "over", "times", "bytes", "at least", "overlapped"):
        found.add_column(
            title, justify="right" if title in ("times", "bytes", "at least") else "left"
        )
    total = sum(one.bytes for one in collectives)
    large = [one for one in collectives if one.bytes >= SHOWN * total]
    for one in large:
        found.add_row(*_row(one))
    if others := [one for one in collectives if one not in large]:
        count, size = sum(one.count for one in others), sum(one.bytes for one in others)
        found.add_row("others", "", "", "", str(count), format_bytes(size), "", "")
    return found


def summary(collectives: Sequence[Collective]) -> str:
    """Describes the least time of a step's collectives, and how much of it is not overlapped."""
    waited = [one for one in collectives if not one.overlapped]
    both = (_seconds(collectives), _seconds(waited))
    size = format_bytes(sum(one.bytes for one in collectives))
    if None in both:
        return f"a device sends {size} in a step"
    return "a device sends {} in a step: {:.3g} s at least, of which it waits for {:.3g} s".format(
        size, *both
    )


def shares(strategies: Mapping[str, Share]) -> str:
    """Describes the bytes that each kind of parallelism sends, relative to its minimum."""
    total = sum(share.sent for share in strategies.values()) or 1
    texts = [
        f"{name} sends {share.sent / share.must:.2f} times what it must"
        for name, share in strategies.items()
        if share.must
    ]
    return ", ".join([*texts, f"others {strategies['other'].sent / total:.1%} of all bytes"])


def _seconds(collectives: Sequence[Collective]) -> float | None:
    times = [one.seconds for one in collectives if one.seconds is not None]
    return sum(times) if len(times) == len(collectives) else None


def _row(one: Collective) -> tuple[str, ...]:
    seconds = one.seconds
    return (
        one.kind,
        one.part,
        "backward" if one.backward else "forward",
        f"{one.axis} ({one.link})",
        str(one.count),
        format_bytes(one.bytes),
        "" if seconds is None else f"{seconds:.3g} s",
        "yes" if one.overlapped else "",
    )
