"""Chips of a run's hosts, and their prices."""

from launcher.cluster.schema import Cluster
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World

US_DOLLARS_PER_CHIP_HOUR = {"v4": 3.22, "v5e": 1.20, "v5p": 4.20, "v6e": 2.70}
"""On-demand list prices in US regions: cloud.google.com/tpu/pricing, November 2026. Other regions
cost up to a fifth more. Reservations and spot cost less; spot prices change daily."""


def price_per_chip_hour(cluster: Cluster) -> float | None:
    """Returns the price of a chip in US dollars; None when it is not known.

    It is that of the cluster file or, where slices are rented, the list price.
    """
    provider = cluster.provider
    if provider.price_per_chip_hour is not None or not provider.rents_slices:
        return provider.price_per_chip_hour
    return US_DOLLARS_PER_CHIP_HOUR.get(cluster.slice.generation)


def chips(world: World) -> int:
    """Returns the number of chips, simulated ones included; CPU devices count as chips."""
    if world.platform == "cpu":
        return world.devices
    whole = accelerators.parse(world.accelerator)
    return world.devices * whole.chips // whole.devices  # a chip may be two devices
