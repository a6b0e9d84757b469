"""Cost estimates of slices before they are requested. Pure."""

from launcher.cluster.prices import Price, list_price
from launcher.providers.gcp.request import TpuRequest
from trainer.contract.planning import accelerators


def chips(wanted: TpuRequest) -> int | None:
    """Returns the chips of all slices. Returns None when the accelerator is unknown."""
    try:
        return wanted.slices * accelerators.parse(wanted.accelerator_type).chips
    except ValueError:
        return None


def dollars_per_hour(wanted: TpuRequest) -> float | None:
    """Returns the estimated cost per hour. Returns None when no price is known."""
    price, total = _price(wanted), chips(wanted)
    return None if price is None or total is None else price.dollars_per_chip_hour * total


def _price(wanted: TpuRequest) -> Price | None:
    """Returns the price of the settings, or else the list price on demand."""
    own = wanted.settings.price_per_chip_hour
    if own is not None:
        return Price(dollars_per_chip_hour=own, source="by provider.price_per_chip_hour")
    try:
        generation = accelerators.parse(wanted.accelerator_type).generation
    except ValueError:
        return None
    return list_price(generation, zone=wanted.zone, spot=False)


def cost_line(wanted: TpuRequest) -> str:
    """Returns a line with the request and its cost, to print before the request is sent."""
    cost, total = dollars_per_hour(wanted), chips(wanted)
    if cost is None or total is None:
        return f"{wanted}: no price is known (say provider.price_per_chip_hour)"
    each = f"{total} chips at ${cost / total:.2f}"
    price = _price(wanted)
    assert price, "its cost is known"
    source = price.source
    if wanted.settings.price_per_chip_hour is None:
        kinds = {"spot": ", spot is cheaper", "reserved": ", a reservation has its own"}
        source = f"an estimate: the list price {source}{kinds.get(wanted.tier, '')}"
    return f"{wanted}: about ${cost:,.2f} an hour, {each} ({source})"


def limit_line(wanted: TpuRequest) -> str:
    """Returns a line with the maximum time and cost, to print before the request is sent."""
    hours, cost = wanted.settings.max_hours, dollars_per_hour(wanted)
    if hours is None:
        return "no limit in time: provider.max_hours sets one"
    most = "" if cost is None else f", about ${cost * hours:,.2f} at most"
    return f"given back after {hours:g} h{most} (provider.max_hours)"
