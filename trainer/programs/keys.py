"""What a program is found by: hashes of everything that it depends on."""

import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from trainer.contract.config.job import Job
from trainer.contract.config.program_keys import program_keys
from trainer.contract.planning.local_sums import sums_locally
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol import versions
from trainer.contract.records.compatibility import code_of
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.distributed.mesh import Device

PLAN_WITHOUT_EFFECT = {"warnings", "corpus", "save_statistics", "replay"}
"""Parts of a plan that change no program."""
VARIABLES = re.compile(
    r"(JAX_(?!COORDINATOR)|XLA_|LIBTPU_|TPU_(?!NAME|WORKER_|PROCESS_)|CUDA_|NVIDIA_|NCCL_)\w+"
)
"""Environment variables that may change a program: not those that name hosts."""
CPU_FEATURES = re.compile(r"^(?:flags|Features)\s*:.*$", re.MULTILINE)
CPU_INFO = Path("/proc/cpuinfo")
NAME_CHARACTERS = 32
"""Characters of a hash in a program's name."""


def of_job(job: Job, plan: Plan, device: Device) -> str:
    """Returns the hash of what the programs of a job depend on in this process.

    `device` is one of the mesh.
    """
    return _hash(*_items(made_from(job, plan, device)))


def made_from(job: Job, plan: Plan, device: Device) -> dict[str, str]:
    """Returns all that the programs of a job depend on in this process, by name."""
    return {
        "job": program_keys(job),
        "vocabulary": str(vocab_size(job)),
        "plan": plan.model_dump_json(exclude=PLAN_WITHOUT_EFFECT),
        "local sums": str(sums_locally(job, plan)),
        "code": code_of(job),
        **_surroundings(device),
    }


def of_machine(device: Device) -> str:
    """Returns the hash of what programs depend on in this process that no job changes.

    Besides it, such programs depend only on their arguments: see `name`.
    """
    count, code = str(jax.process_count()), versions.code_sha256()
    return _hash(count, code, *_items(_surroundings(device)))


def name(function: Any, args: Any, result: Any = None) -> str:
    """Returns a file name for a function with arguments of these shapes, dtypes and shardings.

    `result` is the sharding of its results, if the function has one that `args` do not imply.
    """
    leaves, tree = jax.tree.flatten(args)
    about = [
        (leaf.shape, leaf.dtype, _sharding(getattr(leaf, "sharding", None))) for leaf in leaves
    ]
    parts = _hash(function.__module__, str(tree), str(about), str(_sharding(result)))
    return f"{function.__qualname__}-{parts[:NAME_CHARACTERS]}"


def of_text(lowered: jax.stages.Lowered, devices: Sequence[Device]) -> str:
    """Returns a file name for a lowered function on these devices, in their order.

    Besides what `of_machine` covers, the compiled program depends on nothing else.
    """
    ids = [(device.id, device.process_index) for device in devices]
    parts = (lowered.as_text(), str(lowered.in_tree), str(lowered.out_tree), str(ids))
    return f"text-{_hash(*parts)[:NAME_CHARACTERS]}"


def _surroundings(device: Device) -> dict[str, str]:
    """Returns versions, variables of the environment, number of this process, and compiler."""
    cpu = CPU_FEATURES.search(CPU_INFO.read_text()) if CPU_INFO.exists() else None
    return {
        **versions.versions(),
        **{name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)},
        "process": str(jax.process_index()),
        "device": device.device_kind,
        "compiler": device.client.platform_version,
        "CPU features": cpu[0] if cpu else platform.machine(),
    }


def _items(parts: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in sorted(parts.items())]


def _sharding(sharding: Any) -> tuple[str, list[tuple[int, int]]] | None:
    """Returns a sharding, and the id and process of each of its devices, in their order."""
    if sharding is None:
        return None
    mesh = getattr(sharding, "mesh", None)
    by_id = sorted(sharding.device_set, key=lambda device: device.id)
    devices = by_id if mesh is None else mesh.devices.flat
    return str(sharding), [(device.id, device.process_index) for device in devices]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
