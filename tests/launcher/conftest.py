"""A simulated pod of two hosts that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from launcher.providers import local
from launcher.providers.hosts import Hosts
from tests.spec.worlds import tpu_world
from trainer.spec.plan import World


@pytest.fixture(scope="session")
def pod_world() -> World:
    return tpu_world("v4-16", (2, 2, 2), (2, 2, 1))


@pytest.fixture(scope="session")
def pod(pod_world: World) -> Iterator[Hosts]:
    with local.start(pod_world) as hosts:
        yield hosts
