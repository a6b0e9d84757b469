"""Chip specifications, each with its source. No code or text is copied from the sources."""

from dataclasses import dataclass
from math import isqrt, prod

Shape = tuple[int, ...]
GiB = 1 << 30


@dataclass(frozen=True)
class Tpu:
    """A TPU generation; figures are per chip, in bytes, bytes/s and FLOP/s."""

    name: str
    ray_name: str
    cores: int
    devices: int
    hbm: int
    hbm_rate: float
    peak: float
    ici: float
    dcn: float | None
    topologies: dict[int, Shape]
    """Number of chips -> shape of the slice with that size."""

    def suffix(self, chips: int) -> int:
        return chips * self.cores


@dataclass(frozen=True)
class Gpu:
    """A GPU. `network` is a figure of the host, and None where vendors' hosts differ."""

    name: str
    hbm: int
    hbm_rate: float
    peak: float
    nvlink: float
    network: float | None
    per_host: int = 8


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
# ("TPU v4", ...). Its GB of HBM are GiB, as the runtime reports. Two of its link figures count both
# directions; the figures here count one.
_TPUS = [
    # ICI: Jouppi et al., "A domain-specific supercomputer for training deep neural networks",
    # CACM 2020: 4 links of 496 Gbit/s.
    Tpu("v2", "v2", 2, 2, 16 * GiB, 700e9, 45e12, 248e9, None, _V2),
    # ICI: Jouppi et al., "TPU v4", ISCA 2023, table of TPU v3 and v4: 4 links of 70 GB/s.
    Tpu("v3", "v3", 2, 2, 32 * GiB, 900e9, 123e12, 280e9, None, _V3),
    # ICI: the same table: 6 links of 50 GB/s. 4096 chips are 64 cubes.
    Tpu("v4", "v4", 2, 1, 32 * GiB, 1228e9, 275e12, 300e9, None, _cubes(64)),
    # ICI: "TPU v5e": 400 GB/s both ways. DCN: two NICs of 100 Gbit/s for 8 chips.
    Tpu("v5e", "v5litepod", 1, 1, 16 * GiB, 819e9, 197e12, 200e9, 3.125e9, _FLAT),
    # ICI, DCN: "TPU7x", comparison table, v5p: 1200 GB/s both ways, 50 Gbit/s. "TPU v5p": at most
    # 96 cubes.
    Tpu("v5p", "v5p", 2, 1, 95 * GiB, 2765e9, 459e12, 600e9, 6.25e9, _cubes(96)),
    # ICI, DCN: "TPU7x", comparison table, v6e: 800 GB/s both ways, 100 Gbit/s.
    Tpu("v6e", "v6e", 1, 1, 32 * GiB, 1640e9, 918e12, 400e9, 12.5e9, _FLAT),
    # "TPU7x (Ironwood)": 1200 GB/s both ways, 100 Gbit/s; each of its two chiplets is a JAX device
    # with half the HBM. 9216 chips are 144 cubes.
    Tpu("v7x", "v7x", 2, 2, 192 * GiB, 7380e9, 2307e12, 600e9, 12.5e9, _cubes(144)),
]
TPUS = {tpu.name: tpu for tpu in _TPUS}

# NVIDIA's data sheet for each product (SXM): HBM size and bandwidth; dense bf16, which is half the
# figure with sparsity; NVLink, which is half the figure for both directions. The network is
# 8 x 400 Gbit/s where every vendor's machine with that GPU has it.
_GPUS = [
    Gpu("a100", 40 * GiB, 1555e9, 312e12, 300e9, None),
    Gpu("a100-80gb", 80 * GiB, 2039e9, 312e12, 300e9, None),
    Gpu("h100", 80 * GiB, 3350e9, 989.4e12, 450e9, None),
    Gpu("h200", 141 * GiB, 4800e9, 989.4e12, 450e9, 400e9),
    # "DGX B200": 180 GB and 4.5 PFLOP/s with sparsity for each of 8.
    Gpu("b200", 180 * GiB, 8000e9, 2250e12, 900e9, 400e9),
    # "GB200 NVL72": 5 PFLOP/s with sparsity, 186 GB; hosts of 4 with a NIC of 400 Gbit/s each.
    Gpu("gb200", 185 * GiB, 8000e9, 2500e12, 900e9, 200e9, per_host=4),
]
GPUS = {gpu.name: gpu for gpu in _GPUS}
