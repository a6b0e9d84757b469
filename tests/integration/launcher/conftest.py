"""A simulated pod of two hosts that the tests of this folder share, and what they leave."""

from collections.abc import Iterator

import pytest

from launcher.gang.connect import BEFORE_RAY
from launcher.providers.local import provider
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.assert_no_leftovers import Traces
from tests.support.worlds import tpu_world
from trainer.contract.planning.plan import World

# Ray reads its environment when a process imports it first. Tests that need its exceptions alone
# may come before those that connect to a cluster.
with pytest.MonkeyPatch.context() as patch:
    for name, value in {**BEFORE_RAY, "RAY_AUTH_MODE": "token"}.items():
        patch.setenv(name, value)
    import ray  # noqa: F401


@pytest.fixture
def traces() -> Iterator[Traces]:
    with Traces() as traces:
        yield traces


@pytest.fixture(scope="session")
def pod_world() -> World:
    return tpu_world("v4-16", (2, 2, 2), (2, 2, 1))


@pytest.fixture(scope="session")
def pod(pod_world: World) -> Iterator[OwnedCluster]:
    with provider.start(pod_world) as hosts:
        yield hosts
