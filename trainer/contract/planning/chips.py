"""Chip specifications, each with its source. No code or text is copied from the sources."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt, prod

from trainer.contract.config.model import Precision

Shape = tuple[int, ...]
GiB = 1 << 30
GB = 10**9


@dataclass(frozen=True, kw_only=True)
class Tpu:
    """A TPU generation; figures are per chip."""

    name: str
    ray_name: str
    """Ray's name of the generation."""
    cores: int
    """TensorCores."""
    devices: int
    """JAX devices."""
    hbm_bytes: int
    hbm_bytes_per_s: float
    peak_bf16_flops: float
    """Peak FLOP/s in bfloat16, without sparsity."""
    clock_hz: float
    """Cycles of a core per second, the unit of the compiler's estimates."""
    matrix_side: int
    """Rows and columns of a core's matrix units."""
    ici_bytes_per_s: float
    """Send bandwidth over all links to other chips of the slice together, in one direction."""
    dcn_bytes_per_s: float | None
    """The chip's share of its host's send bandwidth to other slices; None: unknown."""
    topologies: dict[int, Shape]
    """Number of chips -> shape of the slice with that size."""
    pcie_bytes_per_s: float = 15e9
    """Bandwidth to the memory of the host, and as much from there."""
    host_bytes: Mapping[int, int] = field(default_factory=dict[int, int])
    """Chips of a host -> memory of the host; empty: unknown."""
    peak_8bit_flops: Mapping[Precision, float] = field(default_factory=dict[Precision, float])
    """Peak FLOP/s in formats of 8 bits, without sparsity; only those faster than bfloat16."""

    def suffix(self, chips: int) -> int:
        """Returns the number in the name of a slice with `chips` chips: its TensorCores."""
        return chips * self.cores


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU generation; figures are per GPU, except for `network_bytes_per_s`."""

    name: str
    hbm_bytes: int
    hbm_bytes_per_s: float
    peak_bf16_flops: float
    """Peak FLOP/s in bfloat16, without sparsity."""
    nvlink_bytes_per_s: float
    """Send bandwidth to the other GPUs of the host, in one direction."""
    network_bytes_per_s: float | None
    """Send bandwidth of a host to other hosts; None where vendors' hosts differ."""
    per_host: int = 8
    largest_head_dim: int = 256
    """Largest head that cuDNN's attention takes: `check_is_flash_attention` of JAX."""
    packs_documents: bool = True
    """Whether cuDNN's attention takes packed documents; the same function asks for Hopper."""
    peak_8bit_flops: Mapping[Precision, float] = field(default_factory=dict[Precision, float])
    """Peak FLOP/s in formats of 8 bits, without sparsity; only those faster than bfloat16."""


def _shapes(*sides: Shape) -> dict[int, Shape]:
    return {prod(shape): shape for shape in sides}


def _cubes(most: int) -> dict[int, Shape]:
    """Returns the most compact shape of 1 to `most` cubes of 4x4x4 chips, and parts of a cube."""
    shapes = _shapes((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
    for cubes in range(1, most + 1):
        sides = min(_boxes(cubes), key=lambda box: (sum(box), box))
        shapes[64 * cubes] = tuple(4 * side for side in sides)
    return shapes


def _boxes(volume: int) -> list[Shape]:
    """Returns all (a, b, c) with a <= b <= c and a * b * c == volume."""
    return [
        (a, b, volume // (a * b))
        for a in range(1, round(volume ** (1 / 3)) + 1)
        for b in range(a, isqrt(volume // a) + 1)
        if volume % (a * b) == 0
    ]


_FLAT = _shapes((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_V2 = _shapes((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_V3 = _V2 | _shapes((16, 32), (32, 32))

# Peak, HBM and its bandwidth, pod sizes, shapes: the Cloud TPU documentation's page of each version
# ("TPU v4", ..., at https://docs.cloud.google.com/tpu/docs). Its GB of HBM are GiB, as the runtime
# reports. Its link figures count both directions; the figures here count one.
# int8, fp8: the same pages, and jax.experimental.pallas.tpu.TpuInfo for v5p. They give fp8 the rate
# of bfloat16 on v5p and v6e, and int8 no rate on v4 and v7x.
# Clocks: v2, v3: Norrie et al., "The design process for Google's training chips: TPUv2 and TPUv3",
# IEEE Micro 41(2), 2021. v4: Jouppi et al., ISCA 2023 (below), table 4. v5e: Austin et al., "How to
# Scale Your Model", 2025, https://jax-ml.github.io/scaling-book/tpus. v5p, v6e, v7x: the peak,
# divided by the FLOPs per cycle of a core: four matrix units of 128 x 128 in v5p (as in v4 and v5e,
# whose clocks this gives, too) and of 256 x 256 in v6e and v7x. libtpu 0.0.42 estimates products of
# two 16,384 x 16,384 matrices at 94 %, 78 % and 85 % of that.
# PCIe: the same chapter of "How to Scale Your Model". It gives a figure for most chips, twice as
# much for v6e, and none for v7x, which has that of most chips here.
_TPUS = [
    # ICI: Jouppi et al., "A domain-specific supercomputer for training deep neural networks",
    # CACM 63(7), 2020: 4 links of 496 Gbit/s.
    Tpu(
        name="v2",
        ray_name="v2",
        cores=2,
        devices=2,
        hbm_bytes=16 * GiB,
        hbm_bytes_per_s=700e9,
        peak_bf16_flops=45e12,
        clock_hz=700e6,
        matrix_side=128,
        ici_bytes_per_s=248e9,
        dcn_bytes_per_s=None,
        topologies=_V2,
    ),
    # ICI: Jouppi et al., "TPU v4: an optically reconfigurable supercomputer for machine learning
    # with hardware support for embeddings", ISCA 2023, table 4: 4 links of 70 GB/s.
    Tpu(
        name="v3",
        ray_name="v3",
        cores=2,
        devices=2,
        hbm_bytes=32 * GiB,
        hbm_bytes_per_s=900e9,
        peak_bf16_flops=123e12,
        clock_hz=940e6,
        matrix_side=128,
        ici_bytes_per_s=280e9,
        dcn_bytes_per_s=None,
        topologies=_V3,
    ),
    # ICI: the same table: 6 links of 50 GB/s. 4096 chips are 64 cubes. HBM bandwidth: Google's
    # announcement of TPU v5p (December 2023); table and page round it to 1200 GB/s.
    Tpu(
        name="v4",
        ray_name="v4",
        cores=2,
        devices=1,
        hbm_bytes=32 * GiB,
        hbm_bytes_per_s=1228e9,
        peak_bf16_flops=275e12,
        clock_hz=1.05e9,
        matrix_side=128,
        ici_bytes_per_s=300e9,
        dcn_bytes_per_s=None,
        topologies=_cubes(64),
    ),
    # ICI: "TPU v5e": 400 GB/s both ways. DCN: two NICs of 100 Gbit/s for 8 chips. Hosts: the
    # machine types ct5lp-hightpu-1t, -4t and -8t of Compute Engine.
    Tpu(
        name="v5e",
        ray_name="v5litepod",
        cores=1,
        devices=1,
        hbm_bytes=16 * GiB,
        hbm_bytes_per_s=819e9,
        peak_bf16_flops=197e12,
        peak_8bit_flops={"int8": 393e12},
        clock_hz=1.5e9,
        matrix_side=128,
        ici_bytes_per_s=200e9,
        dcn_bytes_per_s=3.125e9,
        topologies=_FLAT,
        host_bytes={1: 48 * GB, 4: 192 * GB, 8: 384 * GB},
    ),
    # ICI, DCN: "TPU7x", comparison table, v5p: 1200 GB/s both ways, 50 Gbit/s. "TPU v5p": at most
    # 96 cubes, and the memory of a host.
    Tpu(
        name="v5p",
        ray_name="v5p",
        cores=2,
        devices=1,
        hbm_bytes=95 * GiB,
        hbm_bytes_per_s=2765e9,
        peak_bf16_flops=459e12,
        peak_8bit_flops={"int8": 918e12},
        clock_hz=1.75e9,
        matrix_side=128,
        ici_bytes_per_s=600e9,
        dcn_bytes_per_s=6.25e9,
        topologies=_cubes(96),
        host_bytes={4: 448 * GB},
    ),
    # ICI, DCN: "TPU7x", comparison table, v6e: 800 GB/s both ways, 100 Gbit/s. HBM bandwidth: 1638
    # GB/s there, rounded as in jax.experimental.pallas.tpu.TpuInfo. Hosts: the same table, 4 chips;
    # machine types ct6e-standard-1t and -8t.
    Tpu(
        name="v6e",
        ray_name="v6e",
        cores=1,
        devices=1,
        hbm_bytes=32 * GiB,
        hbm_bytes_per_s=1640e9,
        peak_bf16_flops=918e12,
        peak_8bit_flops={"int8": 1836e12},
        clock_hz=1.75e9,
        matrix_side=256,
        ici_bytes_per_s=400e9,
        dcn_bytes_per_s=12.5e9,
        topologies=_FLAT,
        pcie_bytes_per_s=32e9,
        host_bytes={1: 176 * GB, 4: 720 * GB, 8: 1440 * GB},
    ),
    # "TPU7x (Ironwood)": 1200 GB/s both ways, 100 Gbit/s; each of its two chiplets is a JAX device
    # with half the HBM. 9216 chips are 144 cubes. Hosts: the same table.
    Tpu(
        name="v7x",
        ray_name="v7x",
        cores=2,
        devices=2,
        hbm_bytes=192 * GiB,
        hbm_bytes_per_s=7380e9,
        peak_bf16_flops=2307e12,
        peak_8bit_flops={"fp8": 4614e12},
        clock_hz=2.2e9,
        matrix_side=256,
        ici_bytes_per_s=600e9,
        dcn_bytes_per_s=12.5e9,
        topologies=_cubes(144),
        host_bytes={4: 960 * GB},
    ),
]
TPUS = {tpu.name: tpu for tpu in _TPUS}

# NVIDIA's data sheet for each product (SXM): HBM size and bandwidth; dense bf16, which is half the
# figure with sparsity (so are int8 and fp8); NVLink, which is half the figure for both directions.
# The GB of HBM are GiB, within 1 % of what nvidia-smi reports. The network is 8 x 400 Gbit/s where
# every vendor's machine with that GPU has it.
_GPUS = [
    Gpu(
        name="a100",
        hbm_bytes=40 * GiB,
        hbm_bytes_per_s=1555e9,
        peak_bf16_flops=312e12,
        peak_8bit_flops={"int8": 624e12},
        nvlink_bytes_per_s=300e9,
        network_bytes_per_s=None,
        largest_head_dim=128,
        packs_documents=False,
    ),
    Gpu(
        name="a100-80gb",
        hbm_bytes=80 * GiB,
        hbm_bytes_per_s=2039e9,
        peak_bf16_flops=312e12,
        peak_8bit_flops={"int8": 624e12},
        nvlink_bytes_per_s=300e9,
        network_bytes_per_s=None,
        largest_head_dim=128,
        packs_documents=False,
    ),
    Gpu(
        name="h100",
        hbm_bytes=80 * GiB,
        hbm_bytes_per_s=3350e9,
        peak_bf16_flops=989.4e12,
        peak_8bit_flops={"int8": 1978.9e12, "fp8": 1978.9e12},
        nvlink_bytes_per_s=450e9,
        network_bytes_per_s=None,
    ),
    Gpu(
        name="h200",
        hbm_bytes=141 * GiB,
        hbm_bytes_per_s=4800e9,
        peak_bf16_flops=989.4e12,
        peak_8bit_flops={"int8": 1978.9e12, "fp8": 1978.9e12},
        nvlink_bytes_per_s=450e9,
        network_bytes_per_s=400e9,
    ),
    # "DGX B200": 180 GB and 4.5 PFLOP/s with sparsity for each of 8.
    Gpu(
        name="b200",
        hbm_bytes=180 * GiB,
        hbm_bytes_per_s=8000e9,
        peak_bf16_flops=2250e12,
        peak_8bit_flops={"int8": 4500e12, "fp8": 4500e12},
        nvlink_bytes_per_s=900e9,
        network_bytes_per_s=400e9,
    ),
    # "GB200 NVL72": 5 PFLOP/s with sparsity; hosts of 4 with a NIC of 400 Gbit/s each. HBM: 186 GB
    # there, 189,471 MiB by nvidia-smi.
    Gpu(
        name="gb200",
        hbm_bytes=185 * GiB,
        hbm_bytes_per_s=8000e9,
        peak_bf16_flops=2500e12,
        peak_8bit_flops={"int8": 5000e12, "fp8": 5000e12},
        nvlink_bytes_per_s=900e9,
        network_bytes_per_s=200e9,
        per_host=4,
    ),
]
GPUS = {gpu.name: gpu for gpu in _GPUS}
