"""What slices cost, as far as it is known beforehand. Pure."""

from launcher.providers.gcp.request import TpuRequest
from trainer.contract.planning import accelerators

US_DOLLARS_PER_CHIP_HOUR = {"v4": 3.22, "v5e": 1.20, "v5p": 4.20, "v6e": 2.70}
"""On demand, in US regions: list prices of cloud.google.com/tpu/pricing, November 2026. Other
regions cost up to a fifth more; reservations and spot less, spot by the day."""


def chips(wanted: TpuRequest) -> int | None:
    """Of all slices; None: the accelerator's name does not say."""
    try:
        return wanted.slices * accelerators.parse(wanted.accelerator_type).chips
    except ValueError:
        return None


def dollars_per_hour(wanted: TpuRequest) -> float | None:
    """An estimate; None: no price is known."""
    price, total = wanted.settings.price_per_chip_hour, chips(wanted)
    if total is None:
        return None
    if price is None:
        generation = accelerators.parse(wanted.accelerator_type).generation
        price = US_DOLLARS_PER_CHIP_HOUR.get(generation)
    return None if price is None else price * total


def cost_line(wanted: TpuRequest) -> str:
    """What is asked for and what it costs, before it is asked for."""
    cost, total = dollars_per_hour(wanted), chips(wanted)
    if cost is None or total is None:
        return f"{wanted}: no price is known (say provider.price_per_chip_hour)"
    each = f"{total} chips at ${cost / total:.2f}"
    if wanted.settings.price_per_chip_hour is not None:
        source = "by provider.price_per_chip_hour"
    else:
        kinds = {"spot": ", spot is cheaper", "reserved": ", a reservation has its own"}
        source = "an estimate: the list price on demand in the US" + kinds.get(wanted.tier, "")
    return f"{wanted}: about ${cost:,.2f} an hour, {each} ({source})"


def limit_line(wanted: TpuRequest) -> str:
    """What slices cost at most, before they are asked for."""
    hours, cost = wanted.settings.max_hours, dollars_per_hour(wanted)
    if hours is None:
        return "no limit in time: provider.max_hours sets one"
    most = "" if cost is None else f", about ${cost * hours:,.2f} at most"
    return f"given back after {hours:g} h{most} (provider.max_hours)"
