"""Refuses a job whose forecast of a host's memory exceeds what the hosts have."""

from collections.abc import Callable

from launcher.cluster.schema import Cluster
from launcher.core.formatting import format_bytes
from trainer.contract.errors import Problem
from trainer.contract.estimates.host_memory import HostMemory, Phase
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World

GIB = 1 << 30
LESS_STATE = "Use more hosts, or a smaller state (optimizer.moments_dtype: bfloat16)"
REMEDIES = {
    "in-memory checkpoints": (
        "checkpoint.in_memory_every_steps",
        "Set it to null, or use more hosts",
    ),
    "staging": ("checkpoint", LESS_STATE),
    "read buffers": ("checkpoint", LESS_STATE),
    "arrays": ("model", LESS_STATE),
    "initialization": ("model", "Use more hosts, or a smaller model"),
    "step": ("data.global_batch", "Set data.grad_accum_steps higher, or model.remat: full"),
    "offloaded activations": ("model.offload", "Offload fewer of them, or use more hosts"),
    "offloaded moments": ("optimizer.offload_moments", f"Remove this key. {LESS_STATE}"),
    "loader": ("data.global_batch", "Use more hosts, or a smaller batch"),
    "tokenizer": ("data", "Tokenize the text beforehand, and use source: tokens"),
    "standby process": ("retries.standby_after_s", "Set it to null"),
}
"""Part of the forecast -> the key that decides its size, and what to change."""
NO_REMEDY = ("name", "Use hosts with more memory")


def available_bytes(cluster: Cluster, world: World) -> int | None:
    """Returns the memory of a host; None when it is unknown, or the hosts are simulated."""
    if world.simulated:
        return None
    if cluster.host_memory_gib is not None:
        return int(cluster.host_memory_gib * GIB)
    return accelerators.host_bytes(world)


def fits(cluster: Cluster, world: World, forecast: HostMemory) -> bool:
    """Returns whether the peak of the forecast fits a host, as far as that is known."""
    available = available_bytes(cluster, world)
    return available is None or forecast.peak.total <= available


def problem(
    problem_of: Callable[[str, str], Problem], cluster: Cluster, world: World, forecast: HostMemory
) -> Problem | None:
    """Returns why a job does not fit the hosts, at the key to change; None when it fits.

    `problem_of` makes a problem of a key of the job and a message.
    """
    available = available_bytes(cluster, world)
    if available is None or fits(cluster, world, forecast):
        return None
    key, remedy = remedy_of(forecast.peak)
    return problem_of(
        key, f"{describe(forecast.peak)}, but it has {format_bytes(available)}. {remedy}"
    )


def describe(phase: Phase) -> str:
    """Returns a text with the bytes of a phase and of its largest parts.

    "each host needs about 2.8 GiB to save: arrays 805 MiB, staging 869 MiB, ..."
    """
    largest = sorted(phase.parts.items(), key=lambda part: -part[1])[:3]
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)
    return f"each host needs about {format_bytes(phase.total)} to {phase.name} ({parts})"


def remedy_of(phase: Phase) -> tuple[str, str]:
    """Returns the key that decides the largest part which can be changed, and what to do."""
    changeable = {name: size for name, size in phase.parts.items() if name in REMEDIES}
    if not changeable:
        return NO_REMEDY
    return REMEDIES[max(changeable, key=lambda name: changeable[name])]
