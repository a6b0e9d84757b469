"""Checks that a simulated world fits into this machine's memory, before anything starts."""

from launcher.core.errors import HostError
from launcher.core.memory import available_bytes, total_bytes
from trainer.contract.estimates.host_memory import HostMemory
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World

MIB = 1 << 20
# Proportional set sizes (shared pages counted once), rounded up. Ray's head with its agents takes
# 341 MiB. Per host, the node with its agents takes 130 MiB, the actor and its reaper 60 MiB, and a
# trainer at the peak of its compilation (a 3 M parameter decoder on a simulated v4-32) 643 MiB.
HEAD_BYTES = 384 * MIB
NODE_BYTES = 208 * MIB
TRAINER_BYTES = 704 * MIB
PROGRAM_PARTS = ("process", "agents", "programs", "compiler", "tokenizer", "standby process")
"""Parts of a forecast that `NODE_BYTES`, `TRAINER_BYTES` and `standby_bytes` cover. One host at a
time tokenizes on a machine."""


def array_bytes(forecast: HostMemory | None) -> int:
    """Returns the most bytes on a host at a time beside programs.

    They are those of arrays, of which checkpoints are a part, and of compilation ahead.
    """
    if forecast is None:
        return 0
    return max(
        sum(size for name, size in phase.parts.items() if name not in PROGRAM_PARTS)
        for phase in forecast.phases
    )


def refuse_if_too_large(
    world: World, state_bytes: int, standby_bytes: int = 0, *, later: bool = False
) -> None:
    """Raises HostError unless the hosts and `state_bytes` of arrays fit.

    `state_bytes` covers what all hosts hold together beside programs, see `array_bytes`.
    `standby_bytes` are those of the standby processes on each host. `later`: whether all
    memory counts, because the programs that use it now will have ended.
    """
    available = total_bytes() if later else available_bytes()
    per_host = NODE_BYTES + world.processes_per_host * TRAINER_BYTES + standby_bytes
    needed = HEAD_BYTES + world.hosts * per_host + state_bytes
    if needed <= available:
        return
    most = _largest(world, (available - HEAD_BYTES - state_bytes) // per_host)
    remedy = (
        f"--simulate-hosts {most} is the most that fits"
        if most >= 1
        else "not even one host fits: make the model smaller or free memory"
    )
    raise HostError(
        f"simulating {world.hosts} hosts needs about {_gib(needed)} GiB of memory "
        f"({_gib(HEAD_BYTES)} for Ray's head, {_gib(per_host)} per host, {_gib(state_bytes)} of "
        f"arrays and compilation ahead); this machine has {_gib(available)} GiB available. "
        f"{remedy}."
    )


def _largest(world: World, most: int) -> int:
    """Returns the most hosts, up to `most`, that slices of this kind can have; 0 when none fits."""
    one_slice = accelerators.parse(
        world.accelerator, hosts=world.hosts_per_slice, devices_per_host=world.devices_per_host
    )
    for hosts in range(most // world.slices, 0, -1):
        try:
            accelerators.with_hosts(one_slice, hosts)
        except ValueError:
            continue
        return hosts * world.slices
    return 0


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f}"
