"""A stand-in for the Cloud TPU API, and what a launch against it remembers."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tpu_api import StandIn, serving

CLUSTER = """\
accelerator: cpu
hosts: 2
devices_per_host: 1
provider:
  kind: gcp
  project: mine
  zone: us-central2-b
  accelerator_type: v4-16
  endpoint: {endpoint}
"""


@pytest.fixture
def cloud() -> Iterator[StandIn]:
    """One with two machines that nobody ever reaches."""
    with serving(StandIn(["10.0.0.1", "10.0.0.2"])) as stand_in:
        yield stand_in


def cluster_file(folder: Path, stand_in: StandIn, more: str = "") -> Path:
    """A cluster of two hosts; `more`: lines of its provider."""
    path = folder / "pod.yaml"
    path.write_text(CLUSTER.format(endpoint=stand_in.endpoint) + more)
    return path


def noted() -> list[str]:
    """The pods that are remembered."""
    pods = Path(os.environ["XDG_STATE_HOME"]) / "slipway" / "pods"
    return [path.name for path in pods.glob("*")]
