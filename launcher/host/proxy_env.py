"""The environment in which a program reaches the run's hosts without an HTTP proxy.

gRPC sends every connection to the proxy of `grpc_proxy`, `https_proxy` or `http_proxy`. This
includes those between the hosts of a run: JAX's coordinator, and libtpu's transport between slices.
"""

from collections.abc import Iterable, Mapping

LISTS = {
    "no_grpc_proxy": ("no_grpc_proxy", "no_proxy", "NO_PROXY"),
    "no_proxy": ("no_proxy", "NO_PROXY"),
    "NO_PROXY": ("NO_PROXY", "no_proxy"),
}
"""Each variable, and the sources of its value: gRPC reads `no_proxy` only if the first is unset.

See grpc/src/core/handshaker/http_connect/http_proxy_mapper.cc."""
METADATA_SERVERS = ("metadata.google.internal", "169.254.169.254")
"""Servers that JAX and Google's libraries query for the local TPU; no proxy can answer that."""


def reach_directly(hosts: Iterable[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Returns `variables` with the addresses of `hosts` in every list of addresses without a proxy.

    The proxies themselves stay: the program uses them for everything else.
    """
    addresses = [*hosts, *METADATA_SERVERS]
    lists = {
        name: ",".join([*filter(None, [_first(variables, sources)]), *addresses])
        for name, sources in LISTS.items()
    }
    return {**variables, **lists}


def _first(variables: Mapping[str, str], names: Iterable[str]) -> str:
    """Returns the value of the first of these variables that is set, or ""."""
    return next((variables[name] for name in names if name in variables), "")
