"""Rejects IPv6 addresses before they are used: the hosts of a run reach each other by IPv4."""

from ipaddress import IPv6Address

from launcher.core.errors import HostError

NEEDED = "IPv6 is not supported: all hosts need IPv4 addresses"


def is_ipv6(address: str) -> bool:
    """Returns whether the text is an IPv6 address; False for a host name."""
    try:
        IPv6Address(address.strip("[]"))
    except ValueError:
        return False
    return True


def check_ipv4(address: str, whose: str) -> None:
    """Raises HostError when the address is an IPv6 address."""
    if is_ipv6(address):
        raise HostError(f"the address of {whose} is {address}. {NEEDED}")
