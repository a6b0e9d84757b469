"""The collectives of a compiled step, as a table."""

from typing import Any

from rich.table import Table

from launcher.core.formatting import format_bytes

SHOWN = 0.01
"""Share of all bytes below which a collective is merged into the row "others"."""


def table(collectives: list[dict[str, Any]]) -> Table:
    """Returns a row per collective: its count, bytes and time on a device in one step.

    `collectives` has the fields of `trainer.analysis.collectives.Collective`.
    """
    found = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("collective", "of", "pass", "over", "times", "bytes", "at least", "overlapped"):
        found.add_column(
            title, justify="right" if title in ("times", "bytes", "at least") else "left"
        )
    total = sum(one["bytes"] for one in collectives)
    large = [one for one in collectives if one["bytes"] >= SHOWN * total]
    for one in large:
        found.add_row(*_row(one))
    if others := [one for one in collectives if one not in large]:
        count, size = (sum(one[key] for one in others) for key in ("count", "bytes"))
        found.add_row("others", "", "", "", str(count), format_bytes(size), "", "")
    return found


def summary(collectives: list[dict[str, Any]]) -> str:
    """Describes the least time of a step's collectives, and how much of it is not overlapped."""
    waited = [one for one in collectives if not one["overlapped"]]
    both = (_seconds(collectives), _seconds(waited))
    size = format_bytes(sum(one["bytes"] for one in collectives))
    if None in both:
        return f"a device sends {size} in a step"
    return "a device sends {} in a step: {:.3g} s at least, of which it waits for {:.3g} s".format(
        size, *both
    )


def shares(strategies: dict[str, dict[str, int]]) -> str:
    """Describes the bytes that each kind of parallelism sends, relative to its minimum."""
    total = sum(share["sent"] for share in strategies.values()) or 1
    texts = [
        f"{name} sends {share['sent'] / share['must']:.2f} times what it must"
        for name, share in strategies.items()
        if share["must"]
    ]
    return ", ".join([*texts, f"others {strategies['other']['sent'] / total:.1%} of all bytes"])


def _seconds(collectives: list[dict[str, Any]]) -> float | None:
    times = [one["seconds"] for one in collectives]
    return None if None in times else sum(times)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    seconds = one["seconds"]
    return (
        one["kind"],
        one["part"],
        "backward" if one["backward"] else "forward",
        f"{one['axis']} ({one['link']})",
        str(one["count"]),
        format_bytes(one["bytes"]),
        "" if seconds is None else f"{seconds:.3g} s",
        "yes" if one["overlapped"] else "",
    )
