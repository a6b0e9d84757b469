"""What a host is told of its Ray node arrives as it was meant."""

import json

from launcher.providers.ray.host_protocol import Order
from tests.support.worlds import tpu_world


def test_host_of_torus_gets_its_topology() -> None:
    order = Order(
        token="", process=1, world=tpu_world("v4-16", (2, 2, 2), (2, 2, 1)), ip="10.0.0.2",
        head=("10.0.0.1", 6379),
    )  # fmt: skip
    told = json.loads(json.dumps(order.model_dump(mode="json")))
    assert Order.model_validate(told) == order
