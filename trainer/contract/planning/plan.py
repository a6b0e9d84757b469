"""The plan of an attempt: everything that both halves must agree on before a process starts.

`launcher/planning/planner.py` makes it from a job and a cluster and writes `plans/0001.json`; the
trainer reads that file and checks that the world it wakes up in is the planned one.
"""

from typing import Literal

from pydantic import Field

from trainer.contract.config.base import Section


class World(Section):
    """The hosts and devices of an attempt, before any of them exists.

    Process p is worker `p % hosts_per_slice` of slice `p // hosts_per_slice`; device
    `p * devices_per_host + i` is its local device i.
    """

    accelerator: str
    platform: Literal["tpu", "gpu", "cpu"]
    simulated: bool
    slices: int
    hosts_per_slice: int
    devices_per_host: int
    topology: tuple[int, ...] | None = Field(strict=False)
    """Chips of one slice along the axes of its torus, e.g. (2, 2, 4); None where there is none."""
    host_bounds: tuple[int, ...] | None = Field(strict=False)
    """Chips of one host along the same axes, e.g. (2, 2, 1)."""

    @property
    def on_cpu(self) -> bool:
        """Whether JAX will see CPU devices, whatever they stand for."""
        return self.simulated or self.platform == "cpu"

    @property
    def processes(self) -> int:
        return self.slices * self.hosts_per_slice

    @property
    def devices(self) -> int:
        return self.processes * self.devices_per_host


class BatchSplit(Section):
    """How the rows of a global batch fall to processes and devices."""

    global_batch: int
    micro_batches: int
    rows_per_device: int
    """Of one micro-batch."""
    positions_per_device: int
    """Of a row: all of them, but for a `context` axis."""
    rows_per_process: int
    """Of the global batch: the size of the block that a process reads."""
    blocks: int
    block_of_process: tuple[int, ...]
    """Processes that hold the same rows, or parts of them (`tensor`, `context` across hosts), read
    the same block.
    """

    @property
    def tokens_per_device(self) -> int:
        """Of one micro-batch."""
        return self.rows_per_device * self.positions_per_device


class ArrayPlan(Section):
    """One parameter: where its bytes are. Its optimizer moments lie the same way."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    """Logical axis of each dim."""
    spec: tuple[str | None, ...]
    """Mesh axis of each dim; None: not split."""
    bytes_per_device: int
    is_trained: bool = True
    """False: of the model that adapters are beside. It has no gradient and no moments."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """As it is kept: what is not trained waits in the compute type, but for norms."""


class Corpus(Section):
    source: str
    sha256: str | None
    """None where only the hosts can see the data."""


class BasePlan(Section):
    """Of any job: all there is to say of a program that Slipway knows nothing of."""

    world: World
    warnings: tuple[str, ...] = ()


class Plan(BasePlan):
    """Of a training job."""

    mesh: dict[str, int]
    """Axis name -> size, slowest first."""
    device_order: tuple[int, ...]
    """Device numbers in the mesh's C order."""
    batch: BatchSplit
    parameters: tuple[ArrayPlan, ...]
    compute_dtype: Literal["float32", "bfloat16"]
    attention: Literal["plain", "splash"] = "plain"
    """`splash`: by JAX's kernel for TPUs, block by block; `plain`: scores as whole arrays."""
    experts: Literal["room", "ragged"] = "room"
    """Of a mixture: `ragged`: each expert's matrix is multiplied with the rows that chose it;
    `room`: with so many places for each sequence."""
    padded_vocab: int
    corpus: Corpus

    @property
    def trained(self) -> tuple[ArrayPlan, ...]:
        """The parameters that a step moves, and a checkpoint holds."""
        return tuple(array for array in self.parameters if array.is_trained)
