"""What a Ray cluster has, as an error tells it."""

from typing import Any

from launcher.gang.host_selection import address_order, listing


def node(ip: str, alive: bool = True, **labels: str) -> dict[str, Any]:
    named = {f"ray.io/tpu-{name.replace('_', '-')}": value for name, value in labels.items()}
    resources = {"CPU": 8.0, "TPU": 4.0, "memory": 1e9} if labels else {"CPU": 8.0}
    address = {"NodeManagerAddress": ip, "NodeID": ip, "Alive": alive}
    return {**address, "Labels": named, "Resources": resources}


def test_node_is_listed_with_slice_and_resources() -> None:
    nodes = [node("10.0.0.1"), node("10.0.0.2", slice_name="a", worker_id="0")]
    assert listing(nodes, free={}).splitlines() == [
        "    10.0.0.1: CPU 8",
        "    10.0.0.2, a worker 0: CPU 8, TPU 4",
    ]


def test_resources_in_use_are_listed() -> None:
    free = {"10.0.0.2": {"CPU": 7.0}}
    nodes = [node("10.0.0.2", slice_name="a", worker_id="0")]
    assert listing(nodes, free).endswith("CPU 8, TPU 4 (in use: CPU 1, TPU 4)")


def test_lost_node_is_listed_unless_replaced() -> None:
    nodes = [node("10.0.0.1", alive=False), node("10.0.0.2", alive=False), node("10.0.0.2")]
    assert listing(nodes, free={}).splitlines() == ["    10.0.0.1: gone", "    10.0.0.2: CPU 8"]


def test_a_large_cluster_is_cut_short() -> None:
    nodes = [node(f"10.0.0.{number}") for number in range(100)]
    assert listing(nodes, free={}).splitlines()[-1] == "    and 80 more"


def test_addresses_are_in_the_order_of_their_numbers() -> None:
    given = ["10.0.0.10", "fd00::1", "10.0.0.9", "head"]
    assert sorted(given, key=address_order) == ["head", "10.0.0.9", "10.0.0.10", "fd00::1"]
