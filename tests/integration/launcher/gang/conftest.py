"""A gang on a simulated pod of two hosts, for small programs in place of the trainer."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.gang.connect import gather
from launcher.gang.gang import Gang
from launcher.providers.ray.host_cluster import OwnedCluster
from tests.support.gang_programs import Seen
from trainer.contract.planning.plan import World


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def shared(pod: OwnedCluster, pod_world: World, folder: Path, seen: Seen) -> Iterator[Gang]:
    with gather(pod, pod_world, folder, seen) as crew:
        yield crew


@pytest.fixture
def crew(shared: Gang, seen: Seen) -> Gang:
    seen.events.clear()
    seen.lines.clear()
    return shared
