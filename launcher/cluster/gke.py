"""What GKE calls the nodes that have TPUs: facts only, of its page "Plan TPUs in GKE"."""

from trainer.contract.planning.accelerators import Accelerator

ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "v7x": "tpu7x",
}
"""Generation -> the label of its nodes."""


def has(kind: Accelerator) -> bool:
    """Whether there are such nodes; where they have no TPUs, GKE's names do not matter."""
    return kind.platform != "tpu" or kind.generation in ACCELERATORS


def selector(kind: Accelerator) -> dict[str, str]:
    """The labels of the nodes that a slice consists of."""
    return {
        "cloud.google.com/gke-tpu-accelerator": ACCELERATORS[kind.generation],
        "cloud.google.com/gke-tpu-topology": "x".join(map(str, kind.topology or ())),
    }
