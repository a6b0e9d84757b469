"""The hosts of a run reach each other by IPv4: an address of IPv6 is refused before it is used."""

from ipaddress import IPv6Address

from launcher.core.errors import ProviderError

NEEDED = "IPv6 is not supported: all hosts need IPv4 addresses"


def is_ipv6(address: str) -> bool:
    """False for a name, too."""
    try:
        IPv6Address(address.strip("[]"))
    except ValueError:
        return False
    return True


def check_ipv4(address: str, whose: str) -> None:
    """Raises ProviderError for an address of IPv6."""
    if is_ipv6(address):
        raise ProviderError(f"the address of {whose} is {address}. {NEEDED}")
