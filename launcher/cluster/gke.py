"""Labels of GKE's TPU nodes, from its page "Plan TPUs in GKE"."""

from trainer.contract.planning.accelerators import Accelerator

ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "v7x": "tpu7x",
}
"""TPU generation -> accelerator label of its nodes."""


def has(kind: Accelerator) -> bool:
    """Returns whether GKE has nodes of this kind; True for CPUs and GPUs, which need no label."""
    return kind.platform != "tpu" or kind.generation in ACCELERATORS


def selector(kind: Accelerator) -> dict[str, str]:
    """Returns the labels of the nodes that a slice consists of."""
    return {
        "cloud.google.com/gke-tpu-accelerator": ACCELERATORS[kind.generation],
        "cloud.google.com/gke-tpu-topology": "x".join(map(str, kind.topology or ())),
    }
