"""Chips of a run's hosts, and their prices."""

from dataclasses import dataclass

from launcher.cluster.schema import Cluster
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World

AS_OF = "2026-11"
"""Year and month in which the table was last compared with its sources."""
DEFAULT_REGION = "us-central1"
US_DOLLARS = {
    "v4": {"us-central2": (3.22, None)},
    "v5e": {
        "us-central1": (1.20, 0.245),
        "us-east1": (1.20, 0.245),
        "us-east4": (1.20, 0.60),
        "us-east5": (1.20, 0.60),
        "us-south1": (1.416, 0.566),
        "us-west1": (1.20, 0.245),
        "us-west4": (1.20, 0.48),
        "northamerica-northeast1": (1.321, 0.364),
        "southamerica-west1": (1.716, 0.473),
        "europe-north1": (1.321, 0.661),
        "europe-west1": (1.321, 0.529),
        "europe-west3": (1.416, 0.39),
        "europe-west4": (1.56, 0.445),
        "asia-east1": (1.389, 0.556),
        "asia-northeast1": (1.541, 0.424),
        "asia-southeast1": (1.56, 0.78),
    },
    "v5p": {
        "us-central1": (4.20, 0.836),
        "us-east1": (4.20, 0.836),
        "us-east5": (4.20, 1.68),
        "us-south1": (4.779, 1.316),
        "europe-west1": (4.459, 1.784),
        "europe-west4": (4.253, 1.348),
    },
    "v6e": {
        "us-central1": (2.70, 0.544),
        "us-east1": (2.70, 0.544),
        "us-east4": (2.70, 0.578),
        "us-east5": (2.70, 1.215),
        "us-south1": (2.70, 1.35),
        "us-west1": (2.70, 0.544),
        "southamerica-west1": (2.70, None),
        "europe-west4": (2.97, 1.037),
        "asia-northeast1": (3.24, 0.944),
        "asia-south1": (3.24, 2.27),
        "asia-southeast1": (2.97, 0.363),
    },
}
"""US dollars per chip and hour by generation and region: on demand, and spot (None: not listed).

On demand in the US: cloud.google.com/tpu/pricing. Other regions and spot: Google's price list, as
github.com/skypilot-org/skypilot-catalog has it (catalogs/v8/gcp/vms.csv, commit 006059e). Spot
prices change daily. Reservations have prices of their own.
"""


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a chip."""

    dollars_per_chip_hour: float
    source: str
    """Where the price is from."""


def price_of(cluster: Cluster) -> Price | None:
    """Returns the price of a cluster's chips for a forecast; None when it is not known.

    It is that of the cluster file. Without it, it is the list price of a TPU in the region of the
    provider's zone, or in the US; that of spot capacity if the provider asks for it.
    """
    provider = cluster.provider
    if provider.price_per_chip_hour is not None:
        return Price(
            dollars_per_chip_hour=provider.price_per_chip_hour,
            source="provider.price_per_chip_hour",
        )
    generation = cluster.slice.generation
    return list_price(generation, zone=provider.rented_zone, spot=provider.rents_spot)


def list_price(generation: str, *, zone: str | None, spot: bool) -> Price | None:
    """Returns the list price of a TPU in a zone; None when the generation is not listed.

    For an unknown zone, or none, it is that of the default region, or of the only one. For spot
    capacity that is not listed it is the price on demand.
    """
    regions = US_DOLLARS.get(generation)
    if regions is None:
        return None
    region = (zone or "").rpartition("-")[0]
    if region not in regions:
        region = DEFAULT_REGION if DEFAULT_REGION in regions else next(iter(regions))
    on_demand, listed = regions[region]
    if spot and listed is not None:
        return Price(dollars_per_chip_hour=listed, source=f"spot in {region}, {AS_OF}")
    return Price(dollars_per_chip_hour=on_demand, source=f"on demand in {region}, {AS_OF}")


def price_per_chip_hour(cluster: Cluster) -> float | None:
    """Returns the price of a chip in US dollars; None when it is not known.

    It is that of the cluster file or, where slices are rented, the list price on demand.
    """
    provider = cluster.provider
    if provider.price_per_chip_hour is not None or not provider.rents_slices:
        return provider.price_per_chip_hour
    found = list_price(cluster.slice.generation, zone=provider.rented_zone, spot=False)
    return found and found.dollars_per_chip_hour


def chips(world: World) -> int:
    """Returns the number of chips, simulated ones included; CPU devices count as chips."""
    if world.platform == "cpu":
        return world.devices
    whole = accelerators.parse(world.accelerator)
    return world.devices * whole.chips // whole.devices  # a chip may be two devices
