"""The `provider` section of pods on Kubernetes."""

from typing import ClassVar, Literal

from pydantic import Field

from launcher.cluster import gke
from launcher.cluster.provider_section import ProviderSection, Seconds, Text
from trainer.contract.config.base import Positive
from trainer.contract.config.errors import KeyedError
from trainer.contract.planning.accelerators import Accelerator


class Kubernetes(ProviderSection):
    """Pods of a Kubernetes cluster with KubeRay. Each run has its own Ray cluster."""

    own_queue: ClassVar[str] = "Kubernetes"

    kind: Literal["kubernetes"]
    image: Text = Field(
        description="Container image of all pods. It holds the launcher's Python, Slipway, and the "
        "folder that `launch` is started in, at the same paths."
    )
    namespace: Text = Field(default="default", description="Namespace of all created objects.")
    context: Text | None = Field(
        default=None,
        description="Context of the kubeconfig. Defaults to the kubeconfig's current context.",
    )
    service_account: Text | None = Field(
        default=None, description="Service account of all pods. Defaults to the namespace's."
    )
    queue: Text | None = Field(
        default=None,
        description="Kueue queue that admits the run. By default, the pods are scheduled "
        "immediately.",
    )
    priority_classes: dict[Text, int] = Field(
        default={},
        description="Smallest `priority` of the jobs that get a priority class, by the name of the "
        "class: {normal: 0, urgent: 5}. With `queue`, it is a WorkloadPriorityClass of Kueue, else "
        "a PriorityClass of the pods. Other jobs get the default.",
    )
    cpu: Positive | None = Field(
        default=None, description="CPU cores that the pod of each host requests."
    )
    memory: Text | None = Field(
        default=None, description='Memory that the pod of each host requests, such as "64Gi".'
    )
    node_selector: dict[Text, str] = Field(
        default={}, description="Labels of the Kubernetes nodes that the hosts' pods may run on."
    )
    tolerations: list[Text] = Field(
        default=[],
        description="Keys of taints that the hosts' pods tolerate, besides those of TPUs and GPUs.",
    )
    volume_claims: dict[Text, Text] = Field(
        default={},
        description="PersistentVolumeClaims to mount in all pods, by the path of the mount.",
    )
    start_timeout_s: Seconds = Field(
        default=1200.0,
        description="Seconds for the pods to become ready. Time in a queue does not count.",
    )

    def priority_class(self, priority: int) -> str | None:
        """Returns the priority class of a job with this priority; None for the default."""
        classes = [(least, name) for name, least in self.priority_classes.items()]
        return max((one for one in classes if one[0] <= priority), default=(0, None))[1]

    def check_slices(self, accelerator: Accelerator, slices: int, hosts: int) -> None:
        del slices, hosts
        if not gke.has(accelerator):
            known = ", ".join(gke.ACCELERATORS)
            message = f"GKE has no nodes of TPU {accelerator.generation}; it has those of {known}"
            raise KeyedError(("accelerator", message))
