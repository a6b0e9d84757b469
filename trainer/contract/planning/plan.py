"""The plan of an attempt: all that launcher and trainer must agree on before a process starts.

`launcher/planning/planner.py` makes it from a job and a cluster and writes `plans/0001.json`. The
trainer reads that file and checks that its actual world is the planned one.
"""

from typing import Literal

from pydantic import Field

from trainer.contract.config.base import Section
from trainer.contract.config.job import Job
from trainer.contract.config.mesh import PipelineSchedule
from trainer.contract.config.model import Model, Precision
from trainer.contract.planning.save_interval import SaveStatistics

Dtype = Literal["float32", "bfloat16"]
AttentionKernel = Literal["reference", "splash", "cudnn", "cudnn_packed", "triton"]
MoEKind = Literal["capacity", "ragged", "megablox", "megablox_exchange"]


class World(Section):
    """The hosts and devices of an attempt, before any of them exists.

    Host h is worker `h % hosts_per_slice` of slice `h // hosts_per_slice`. Process p is process
    `p % processes_per_host` of host `p // processes_per_host`; device `p * devices_per_process + i`
    is its local device i.
    """

    accelerator: str
    platform: Literal["tpu", "gpu", "cpu"]
    simulated: bool
    slices: int
    hosts_per_slice: int
    devices_per_host: int
    processes_per_host: int = 1
    """A divisor of `devices_per_host`; 1 on TPUs."""
    topology: tuple[int, ...] | None = Field(strict=False)
    """Chips of one slice along the axes of its torus, e.g. (2, 2, 4); None without a torus."""
    host_bounds: tuple[int, ...] | None = Field(strict=False)
    """Chips of one host along the same axes, e.g. (2, 2, 1)."""

    @property
    def on_cpu(self) -> bool:
        """Whether JAX runs on CPU devices, simulated accelerators included."""
        return self.simulated or self.platform == "cpu"

    @property
    def hosts(self) -> int:
        return self.slices * self.hosts_per_slice

    @property
    def processes(self) -> int:
        return self.hosts * self.processes_per_host

    @property
    def devices(self) -> int:
        return self.hosts * self.devices_per_host

    @property
    def devices_per_process(self) -> int:
        return self.devices_per_host // self.processes_per_host

    def host_of(self, process: int) -> int:
        return process // self.processes_per_host


class BatchSplit(Section):
    """The split of a global batch's rows over processes and devices."""

    global_batch: int
    grad_accum_steps: int
    rows_per_device: int
    """Rows of one micro-batch."""
    positions_per_device: int
    """Positions of a row: all of them, unless a `context` axis splits them."""
    chunks: int = 1
    """Chunks of a row, an early and a late one for each device along `context`, in the order of the
    devices: 0, n - 1, 1, n - 2 and on. 1: positions are in order.
    """
    rows_per_process: int
    """Rows of the global batch: the size of the block that a process reads."""
    blocks: int
    block_of_process: tuple[int, ...]
    """Number of the block that each process reads. Processes that hold the same rows, or parts of
    them (`tensor`, `context` across hosts), read the same block.
    """

    @property
    def tokens_per_device(self) -> int:
        """Tokens of one micro-batch."""
        return self.rows_per_device * self.positions_per_device


class ArrayPlan(Section):
    """The sharding of one parameter. Its optimizer moments are sharded the same way."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    """Logical axis of each dim."""
    spec: tuple[str | None, ...]
    """Mesh axis of each dim; None for a dim that is not split."""
    bytes_per_device: int
    is_trained: bool = True
    """False for the base model of adapters, and for a teacher: no gradient and no moments."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Storage dtype: frozen parameters are stored in the compute dtype, except for norms."""


class TeacherPlan(Section):
    """The teacher of a distillation, which runs only forward on the same mesh and batch."""

    model: Model
    parameters: tuple[ArrayPlan, ...]
    attention: AttentionKernel
    moe: MoEKind

    @property
    def bytes_per_device(self) -> int:
        return sum(array.bytes_per_device for array in self.parameters)


class Corpus(Section):
    """The data of a training job."""

    source: str
    sha256: str | None
    """None when only the hosts can read the data."""


class Replay(Section):
    """A second computation of steps that a run has done, for `launch audit`. It saves nothing."""

    checkpoint: str | None
    """The step folder that it starts from: an absolute path or a URL; None for step 0."""
    first_step: int
    """First step whose digests are recorded."""
    exclusions: str | None = None
    """The folder whose `excluded.json` lists the examples that the run has left out."""
    reordered: bool = False
    """Whether the sums of a step are in another order than in a run."""


class BasePlan(Section):
    """The plan of any job; for a job with a `command`, the whole plan."""

    world: World
    warnings: tuple[str, ...] = ()


class Plan(BasePlan):
    """The plan of a training job."""

    mesh: dict[str, int]
    """Axis name -> size, slowest first."""
    device_order: tuple[int, ...]
    """Device numbers in the mesh's C order."""
    batch: BatchSplit
    pipeline_rounds: int = 1
    """Times that a micro-batch passes through all stages of `pipeline`."""
    pipeline_schedule: PipelineSchedule = "gpipe"
    """Order of forward and backward passes on the stages of `pipeline`."""
    parameters: tuple[ArrayPlan, ...]
    compute_dtype: Dtype
    precision: Precision | None = None
    """Format of the layers' products with weights; None: the compute dtype."""
    attention: AttentionKernel = "reference"
    """`splash`: JAX's TPU kernel; `cudnn`: that of cuDNN, for rows of one document; `cudnn_packed`:
    the same, for each packed document; `triton`: JAX's GPU kernel, for packed documents; all block
    by block. `reference`: scores as whole arrays."""
    busiest_attention: float = 1.0
    """Attention's work on the busiest device along `context`, relative to the mean. It counts pairs
    of a query and a key, as if a row were one document.
    """
    moe: MoEKind = "capacity"
    """Method of expert products. `ragged` and `megablox` multiply each expert's matrix with the
    rows that chose it, by XLA and by JAX's TPU kernel; `capacity` multiplies it with a fixed number
    of rows in each sequence. With `megablox_exchange` devices along `expert` send rows to the
    devices of their experts; with `ragged` and `megablox` each gathers the tokens of all others."""
    padded_vocab: int
    corpus: Corpus
    save_statistics: SaveStatistics | None = None
    """What the interval of `checkpoint.every_minutes: auto` starts from; None without `auto`."""
    replay: Replay | None = None
    """Set for a replay of steps of another run."""
    teacher: TeacherPlan | None = None
    """Set for a distillation."""

    @property
    def trained(self) -> tuple[ArrayPlan, ...]:
        """The parameters that a step updates and a checkpoint stores."""
        return tuple(array for array in self.parameters if array.is_trained)

    def teacher_model(self, job: Job) -> Model:
        """Returns the model of the teacher, for another plan of the same job."""
        del job
        assert self.teacher
        return self.teacher.model

    @property
    def teacher_bytes(self) -> int:
        """Bytes of the teacher's weights on a device; 0 without a teacher."""
        return self.teacher.bytes_per_device if self.teacher else 0
