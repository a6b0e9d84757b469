"""The answers of the trainer's processes for analysis: one JSON object on standard output each.

The process prints the fields of a dataclass, and the launcher reads them back into it.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Collective:
    """All collectives of one kind and purpose in a step, added up."""

    kind: str
    part: str
    """Part of the model or the step; `other` when the program does not name it."""
    backward: bool
    axis: str
    """Mesh axes that it spans: for example "fsdp" or "data+fsdp"."""
    link: str
    """`ici`: links inside an island (a slice of TPUs, a host of GPUs); `dcn`: between islands."""
    overlapped: bool
    """Whether its start and its end are separate instructions, with other work between them."""
    count: int
    """Executions in one step, with the iterations of loops."""
    bytes: int
    """Bytes that a device sends in all of them together."""
    seconds: float | None
    """Lower bound, over all links of a device together; None when their bandwidth is unknown."""


@dataclass(frozen=True)
class Share:
    """Bytes that a device must send, and does send, in one step."""

    must: int
    sent: int


@dataclass(frozen=True)
class StepSchedule:
    """Time of a step on the devices, by following the compiled schedule."""

    device_s: float
    parts: dict[str, float]
    """Seconds by part, which add up to `device_s`: what the core does, and what it waits for."""
    busy: dict[str, float]
    """Seconds that the core, the links of each mesh axis and other resources work."""


@dataclass(frozen=True)
class CompileReport:
    """Result of compiling a step: whether it fits, its memory by part, time and collectives.

    Bytes are per device.
    """

    fits: bool
    hbm_needed_bytes: int | None
    """None when the step does not fit and the compiler does not report its size."""
    hbm_available_bytes: int
    memory: dict[str, int]
    """Bytes by part: parameters, optimizer, batch, and if known, temporaries and program."""
    compile_s: float
    message: str
    """Why it does not fit: the compiler's error, or that the evaluation does not. Else empty."""
    collectives: list[Collective] | None = None
    """Collectives, most bytes first; None without a program, or when it is not understood."""
    strategies: dict[str, Share] | None = None
    """Bytes that each kind of parallelism must send and sends; None also for a custom model."""
    evaluation_bytes: int | None = None
    """Bytes of an evaluation with the optimizer's state in memory; None when it is not compiled."""
    schedule: StepSchedule | None = None
    """The step's time; None without a program, or when it is not understood."""
    products: dict[str, int] | None = None
    """Matrix products of a step outside kernels, by the dtypes of their operands as XLA writes them
    (`bf16`, `s8`); None without a program, or when it is not understood."""
    host_bytes: int | None = None
    """Bytes of offloaded activations and moments in the memory of the host, per device; None
    without a program."""

    @property
    def is_preliminary(self) -> bool:
        """Whether the step fits and its code is not compiled yet.

        The bytes needed are a bound for all buffers then, and leave out the code.
        """
        return self.fits and "program" not in self.memory


@dataclass(frozen=True)
class KeptPrograms:
    """Compiled programs that were written to a file for one process."""

    programs: int
    bytes: int
    """Size of the file."""
    compilations: int
    """Number of programs that were compiled now, or read from JAX's compile cache."""


@dataclass(frozen=True)
class Frame:
    """A line of source code, in a function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


SourceLocation = tuple[Frame, ...]
"""Frames, from the innermost to the outermost caller; empty when unknown."""


@dataclass(frozen=True)
class DocumentLoss:
    """The part of an example that comes from one document."""

    source: str
    """Name of its source in a mixture; "" for a single corpus."""
    document: str
    """Name of the document: its file, and its line if the file has several."""
    file: str
    """Path of the file."""
    line: int | None
    """Line or row in the file, from 1; None for a whole file, or a file of tokens."""
    first_token: int
    """Position of the part in the document, in tokens; 0 is the separator before the text."""
    tokens: int
    """Tokens of the part."""
    loss: float | None
    """Mean loss of its targets, in nats; None when it has none."""
    text: str
    """The begin of its text."""


@dataclass(frozen=True)
class ExampleLoss:
    """An example of a step, with its loss before the update."""

    example: int
    """Number of the example in the corpus."""
    loss: float | None
    """Mean loss of its targets, in nats; None when it has none."""
    documents: list[DocumentLoss]
    """The documents that it comes from, in their order in it."""


@dataclass(frozen=True)
class StepExamples:
    """The examples of a step, by the weights that the step started from."""

    step: int
    from_step: int
    """Step of the checkpoint from which the steps before it were computed again; 0 for none."""
    loss: float | None
    """Loss of the step, computed again; None when it is not finite."""
    recorded_loss: float | None
    """Loss in metrics.jsonl; None when it has none of this step."""
    grad_norm: float | None
    """Gradient norm of the step, computed again; None when it is not finite."""
    is_excluded: bool
    """Whether the run has rewound at this step, and excluded these examples."""
    count: int
    """Number of examples in the step."""
    notes: list[str]
    """Packages that have changed since the checkpoint: losses may differ in the last digits."""
    examples: list[ExampleLoss]
    """The examples with the highest loss, the highest first; one that is not finite is before all.
    """


FindingKind = Literal["ambiguous", "reshard", "constraint"]


@dataclass(frozen=True)
class ShardingFinding:
    """A source location that is ambiguous, or that reshards, with its counts in a step."""

    kind: FindingKind
    """`constraint`: a reshard that the model itself requests."""
    backward: bool
    place: SourceLocation
    operation: str
    old: str
    """Type and layout of the array before; "" when nothing is moved."""
    new: str
    times: int
    """Occurrences per step."""
    bytes: int
    """Bytes that a device receives per step."""
    reason: str
    """Why it is ambiguous; "" for other kinds."""


@dataclass(frozen=True)
class ShardingReport:
    """Result of tracing a step under explicit axis types."""

    findings: list[ShardingFinding]
    """Findings, most bytes first."""
    stopped: str = ""
    """Why the backward pass is missing; "" when it is included or was not requested."""
