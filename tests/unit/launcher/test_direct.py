"""Programs reach the hosts of their run directly, and everything else by their proxies."""

from launcher.host.proxy_env import reach_directly

HOSTS = ["10.0.0.1", "10.0.0.2"]
ADDED = "10.0.0.1,10.0.0.2,metadata.google.internal,169.254.169.254"


def test_without_exceptions_the_hosts_are_the_only_ones() -> None:
    variables = reach_directly(HOSTS, {"http_proxy": "http://proxy:3128"})
    assert variables["http_proxy"] == "http://proxy:3128"
    assert [variables[name] for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY")] == [ADDED] * 3


def test_the_exceptions_of_the_host_are_kept() -> None:
    variables = reach_directly(HOSTS, {"no_proxy": ".corp", "no_grpc_proxy": "store"})
    assert variables["no_proxy"] == f".corp,{ADDED}"
    assert variables["no_grpc_proxy"] == f"store,{ADDED}"


def test_exceptions_in_upper_case_hold_in_every_list() -> None:
    """gRPC does not read them, and Python reads `no_proxy` first."""
    variables = reach_directly(HOSTS, {"NO_PROXY": ".corp"})
    assert {variables[name] for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY")} == {
        f".corp,{ADDED}"
    }
