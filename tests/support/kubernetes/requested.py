"""What is requested from Kubernetes for a cluster, in tests."""

from typing import Any

from launcher.cluster.schema import Cluster, Kubernetes
from launcher.providers.kubernetes.manifest import ray_cluster
from tests.support.kubernetes.crd import problems

IMAGE = "registry.example/train:1"


def asked_for(
    accelerator: str, slices: int = 1, priority: int = 0, **settings: object
) -> dict[str, Any]:
    """A RayCluster, held against the CRD."""
    provider = {"kind": "kubernetes", "image": IMAGE, **settings}
    more = {"hosts": 3, "devices_per_host": 2} if accelerator == "cpu" else {}
    file = {"accelerator": accelerator, "slices": slices, "provider": provider, **more}
    cluster = Cluster.model_validate(file)
    assert isinstance(cluster.provider, Kubernetes)
    world = cluster.world(simulated=False)
    made = ray_cluster("slipway-a-1", world, cluster.provider, "2.60.0", priority)
    assert problems(made) == []
    return made


def group_of(made: dict[str, Any]) -> dict[str, Any]:
    (group,) = made["spec"]["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    return group


def pod_of(made: dict[str, Any]) -> dict[str, Any]:
    return group_of(made)["template"]["spec"]
