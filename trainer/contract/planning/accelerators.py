"""Accelerator names and their hardware facts: `v4-32` is 16 chips on 4 hosts, 2x2x4.

The suffix of a TPU name counts TensorCores for v2, v3, v4, v5p and v7x, and chips for v5e and v6e
(where a chip has one core). A GPU name counts GPUs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Literal

from trainer.contract.config.errors import suggest
from trainer.contract.config.model import Precision
from trainer.contract.planning.chips import GPUS, TPUS, Gpu, Shape, Tpu
from trainer.contract.planning.plan import World


@dataclass(frozen=True)
class Accelerator:
    """One slice of one kind of chip. Devices are JAX devices."""

    name: str
    platform: Literal["tpu", "gpu", "cpu"]
    generation: str
    chips: int
    hosts: int
    devices_per_host: int
    topology: Shape | None
    """Chips along the axes of the torus; None without a torus."""
    host_bounds: Shape | None
    """Chips of one host along the same axes."""
    hbm_bytes: int | None
    """HBM per device."""
    hbm_bytes_per_s: float | None
    """HBM bandwidth per device."""
    peak_bf16_flops: float | None
    """Peak FLOP/s per device, without sparsity."""
    clock_hz: float | None
    """Cycles of a TPU core per second; None for other devices."""
    ici_bytes_per_s: float | None
    """Send bandwidth per device over all its links together (on GPU: NVLink)."""
    host_link_bytes_per_s: float | None
    """Bandwidth per device to the memory of its host, and as much from there; None for GPUs."""
    dcn_bytes_per_s: float | None
    """Send bandwidth per host over the network to other slices or hosts."""
    ray_pod_type: str | None
    """Ray's name for the slice (TPU_ACCELERATOR_TYPE); None without TPUs."""
    ray_generation: str | None
    """Ray's name for the generation (accelerator_version)."""
    peak_8bit_flops: Mapping[Precision, float] = field(default_factory=dict[Precision, float])
    """Peak FLOP/s per device in formats of 8 bits; only those faster than bfloat16."""

    @property
    def devices(self) -> int:
        return self.hosts * self.devices_per_host

    def peak_flops(self, precision: Precision | None) -> float | None:
        """Returns the peak FLOP/s per device of products in a precision; None: bfloat16.

        A format that the chip has no units for is computed in bfloat16.
        """
        return (
            self.peak_bf16_flops
            if precision is None
            else self.peak_8bit_flops.get(precision, self.peak_bf16_flops)
        )

    @property
    def chips_per_host(self) -> int:
        return self.chips // self.hosts


# Names that other tools use for the same chips.
_ALIASES = {
    "v5litepod": "v5e", "tpu7x": "v7x", "a100-40gb": "a100", "h100-80gb": "h100",
    "h200-141gb": "h200",
}  # fmt: skip
_NAME = re.compile(r"(.+)-([0-9]{1,6})")


def parse(
    name: str, *, hosts: int | None = None, devices_per_host: int | None = None
) -> Accelerator:
    """Returns the facts of a slice by name: "v4-32", "v5litepod-16", "h100-8"; or "cpu".

    `hosts` and `devices_per_host` define a cpu slice. They also select one of several layouts of
    the same name (v6e-8 is one host of 8 or two of 4).

    Raises:
      ValueError: for an unknown name, a size that does not exist, or hosts that do not fit it.
    """
    if name.lower() == "cpu":
        return _cpu(hosts or 1, devices_per_host or 1)
    kind, size = _split(name)
    if kind in GPUS:
        accelerator = _gpu(GPUS[kind], size, hosts, devices_per_host)
    else:
        accelerator = _tpu(TPUS[kind], size, hosts, devices_per_host)
    _check_layout(accelerator, hosts, devices_per_host)
    return accelerator


def of_device_kind(platform: str, kind: str, devices: int) -> str:
    """Returns the name of the devices of one host, which `parse` may not know, by JAX's kind.

    "NVIDIA H200" is h200-1, "NVIDIA A100-SXM4-80GB" a100-80gb-1.
    """
    words = re.split(r"[ -]", kind.lower().removeprefix("nvidia "))
    if platform == "cpu" or not words[0]:
        return platform
    with_size = f"{words[0]}-{words[-1]}"
    return f"{with_size if with_size in GPUS else words[0]}-{devices}"


def with_hosts(accelerator: Accelerator, hosts: int) -> Accelerator:
    """Returns the slice with `hosts` hosts of the same kind.

    Raises:
      ValueError: when no topology of that size exists, with the nearest host counts that do.
    """
    if hosts == accelerator.hosts:
        return accelerator
    if accelerator.platform == "cpu" and hosts > 0:
        return _cpu(hosts, accelerator.devices_per_host)
    per_host = accelerator.chips_per_host
    if hosts > 0 and accelerator.platform == "gpu":
        return parse(f"{accelerator.generation}-{hosts * per_host}", hosts=hosts)
    if hosts not in _host_counts(accelerator):
        near = _either(_nearest(hosts, _host_counts(accelerator)))
        raise ValueError(
            f"no {accelerator.generation} slice has {hosts} hosts of {per_host} chips. "
            f"The nearest host counts: {near}"
        )
    tpu = TPUS[accelerator.generation]
    return parse(f"{tpu.name}-{tpu.suffix(hosts * per_host)}", hosts=hosts)


def _host_counts(accelerator: Accelerator) -> list[int]:
    """Returns the host counts that a slice with this kind of host can have."""
    if accelerator.platform != "tpu":
        return [1]
    per_host = accelerator.chips_per_host
    sizes = TPUS[accelerator.generation].topologies
    return [n // per_host for n in sizes if per_host in _hosts_of(accelerator.generation, n)]


def _split(name: str) -> tuple[str, int]:
    """Splits a name into the kind, by Slipway's name for it, and the size."""
    known = [*TPUS, *GPUS]
    match = _NAME.fullmatch(name.lower())
    kind = match[1] if match else name.lower()
    kind = _ALIASES.get(kind, kind)
    if kind not in known:
        hint = suggest(kind, [*known, *_ALIASES, "cpu"])
        raise ValueError(
            f"unknown accelerator '{name}'. Use cpu, or a size of {', '.join(known)}.{hint}"
        )
    if not match:
        raise ValueError(f"'{name}' needs a size, such as {_example(kind)}")
    return kind, int(match[2])


def _example(kind: str) -> str:
    return f"{kind}-{TPUS[kind].suffix(4) if kind in TPUS else GPUS[kind].per_host}"


def _cpu(hosts: int, devices_per_host: int) -> Accelerator:
    chips = hosts * devices_per_host
    facts = [None] * 11
    return Accelerator("cpu", "cpu", "cpu", chips, hosts, devices_per_host, *facts)  # type: ignore[arg-type]


def _gpu(gpu: Gpu, size: int, hosts: int | None, devices_per_host: int | None) -> Accelerator:
    whole = size % gpu.per_host == 0
    if size < 1 or not (size <= gpu.per_host or whole):
        down = size // gpu.per_host * gpu.per_host
        raise ValueError(
            f"{gpu.name}-{size} does not exist: a host has {gpu.per_host} GPUs. "
            f"The nearest sizes: {_either(_names(gpu.name, [down or 1, down + gpu.per_host]))}"
        )
    per_host = devices_per_host or (size // hosts if hosts else min(size, gpu.per_host))
    return Accelerator(
        name=f"{gpu.name}-{size}",
        platform="gpu",
        generation=gpu.name,
        chips=size,
        hosts=size // (per_host or 1),
        devices_per_host=per_host,
        topology=None,
        host_bounds=None,
        hbm_bytes=gpu.hbm_bytes,
        hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        peak_bf16_flops=gpu.peak_bf16_flops,
        peak_8bit_flops=gpu.peak_8bit_flops,
        clock_hz=None,
        ici_bytes_per_s=gpu.nvlink_bytes_per_s,
        host_link_bytes_per_s=None,
        dcn_bytes_per_s=gpu.network_bytes_per_s,
        ray_pod_type=None,
        ray_generation=None,
    )


def _tpu(tpu: Tpu, size: int, hosts: int | None, devices_per_host: int | None) -> Accelerator:
    chips, rest = divmod(size, tpu.cores)
    if rest or chips not in tpu.topologies:
        sizes = _nearest(size, [tpu.suffix(n) for n in tpu.topologies])
        raise ValueError(
            f"{tpu.name}-{size} does not exist. "
            f"The nearest sizes: {_either(_names(tpu.name, sizes))}"
        )
    per_host = _chips_per_host(tpu, chips, hosts, devices_per_host)
    topology = tpu.topologies[chips]
    return Accelerator(
        name=f"{tpu.name}-{size}",
        platform="tpu",
        generation=tpu.name,
        chips=chips,
        hosts=chips // per_host,
        devices_per_host=per_host * tpu.devices,
        topology=topology,
        host_bounds=_HOST_BOUNDS[per_host][: len(topology)],
        hbm_bytes=tpu.hbm_bytes // tpu.devices,
        hbm_bytes_per_s=tpu.hbm_bytes_per_s / tpu.devices,
        peak_bf16_flops=tpu.peak_bf16_flops / tpu.devices,
        peak_8bit_flops={of: peak / tpu.devices for of, peak in tpu.peak_8bit_flops.items()},
        clock_hz=tpu.clock_hz,
        ici_bytes_per_s=tpu.ici_bytes_per_s / tpu.devices,
        host_link_bytes_per_s=tpu.pcie_bytes_per_s / tpu.devices,
        dcn_bytes_per_s=None if tpu.dcn_bytes_per_s is None else tpu.dcn_bytes_per_s * per_host,
        ray_pod_type=f"{tpu.ray_name}-{size}",
        ray_generation=tpu.ray_name,
    )


_HOST_BOUNDS: dict[int, Shape] = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}


def _hosts_of(generation: str, chips: int) -> list[int]:
    """Returns the possible numbers of chips per host of a slice, the usual number first.

    v5e and v6e with 8 chips are one machine of 8 or two of 4 ("TPU v5e", "TPU v6e": VM types).
    """
    if generation in ("v5e", "v6e") and chips <= 8:
        return [8, 4] if chips == 8 else [chips]
    return [4]


def _chips_per_host(tpu: Tpu, chips: int, hosts: int | None, devices: int | None) -> int:
    possible = _hosts_of(tpu.name, chips)
    fits = (
        n for n in possible if hosts in (None, chips // n) and devices in (None, n * tpu.devices)
    )
    return next(fits, possible[0])


def _check_layout(made: Accelerator, hosts: int | None, devices_per_host: int | None) -> None:
    usual = parse(made.name) if hosts or devices_per_host else made
    fits = (
        hosts in (None, made.hosts)
        and devices_per_host in (None, made.devices_per_host)
        and made.devices == usual.devices
        and made.devices_per_host <= usual.devices_per_host
    )
    if not fits:
        given = " x ".join(
            filter(None, [_count(hosts, "host"), _count(devices_per_host, "device")])
        )
        has = f"{_count(usual.hosts, 'host')} x {_count(usual.devices_per_host, 'device')}"
        raise ValueError(f"{made.name} has {has}, not {given}")


def _count(n: int | None, noun: str) -> str:
    return "" if n is None else f"{n} {noun}{'' if n == 1 else 's'}"


def _nearest(wanted: int, known: list[int]) -> list[int]:
    below = [n for n in known if n < wanted]
    above = [n for n in known if n > wanted]
    return sorted(below)[-1:] + sorted(above)[:1]


def _names(kind: str, sizes: list[int]) -> list[str]:
    return [f"{kind}-{size}" for size in sizes]


def _either(values: list[str] | list[int]) -> str:
    return " or ".join(map(str, values))


def host_bytes(world: World) -> int | None:
    """Returns the memory of a host of the machine type that has the accelerator; None: unknown."""
    if world.platform != "tpu":
        return None
    kind = parse(
        world.accelerator, hosts=world.hosts_per_slice, devices_per_host=world.devices_per_host
    )
    return TPUS[kind.generation].host_bytes.get(kind.chips_per_host)


def lacks_compiler(world: World) -> str:
    """Returns why this machine cannot compile for a world, with the remedy, or "" when it can."""
    if world.on_cpu:
        return "only TPUs can be compiled for. Name a TPU, without --simulate"
    if world.platform != "tpu" or not (world.topology and world.host_bounds):
        return f"{world.accelerator}: only TPUs can be compiled for without the hardware"
    if find_spec("libtpu") is None:
        return "the TPU compiler is not installed. Install it with `uv sync --extra tpu`"
    return ""
