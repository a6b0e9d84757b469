"""The events that a program sends to the launcher, one JSON object per line; see wire.py.

Any program may send events, not only the trainer. Only fields without a default are required.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

Edge = Literal["begin", "end"]
RestoreSource = Literal["storage", "memory", "neighbor"]
"""`memory`: the memory of each process's own host; `neighbor`: copies in that of other hosts."""
SpikeAction = Literal["continued", "skipped", "rewound", "stopped"]
PORT_TAKEN, PEER_LOST, STALE = "port_taken", "peer_lost", "stale"
REWOUND = "rewound"
WRONG_HOST = "wrong_host"
"""Categories of a program's last warning or error that the launcher acts on."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """The fields of every event. `kind` is the value of "event" on the wire."""

    kind: ClassVar[str]
    time: float | None = None
    """When it was sent, in seconds since the epoch by the sender's clock."""
    process: int | None = None
    """Number of the process, from 0; absent for an event of the launcher."""
    attempt: int | None = None
    """Number of the attempt, from 1."""
    received: float | None = None
    """When the launcher received it, in seconds since the epoch by the launcher's clock."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields that this type of event does not define, or whose value has the wrong type."""

    def stamped(self, **changes: int | float | None) -> Self:
        """Returns a copy with another `time`, `process`, `attempt` or `received`.

        Faster than `dataclasses.replace`: every event of every host is stamped.
        """
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), **changes)
        return copy


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(Event):
    """An event of another type, or one that lacks a required field."""

    kind: ClassVar = "unknown"
    event: str
    """The value of "event" on the wire."""


@dataclass(frozen=True, kw_only=True)
class StartedEvent(Event):
    """The program has started and begins to prepare."""

    kind: ClassVar = "started"
    versions: Mapping[str, str] | None = None
    """Installed version of Python and of each package."""
    code: str | None = None
    """SHA-256 over all code that computes the job."""


@dataclass(frozen=True, kw_only=True)
class InitializedEvent(Event):
    """The processes of the attempt are connected to each other."""

    kind: ClassVar = "initialized"
    processes: int | None = None
    """Number of processes."""
    hosts: int | None = None
    """Number of hosts."""
    devices: int | None = None
    """Number of devices of all processes together."""


@dataclass(frozen=True, kw_only=True)
class CompiledEvent(Event):
    """The step is compiled, or read from a cache."""

    kind: ClassVar = "compiled"
    seconds: float
    """Seconds that this took."""
    from_cache: bool
    """Whether the program was in a cache."""
    traces: int | None = None
    """Number of functions that the process has traced since its attempt began."""
    compilations: int | None = None
    """Number of programs that it has compiled or read from JAX's cache, which needs a trace."""


@dataclass(frozen=True, kw_only=True)
class CheckedEvent(Event):
    """The check of a host is done. The launcher compares these values between the hosts."""

    kind: ClassVar = "checked"
    versions: Mapping[str, str] | None = None
    """Installed version of Python and of each package."""
    code: str | None = None
    """SHA-256 over all code that computes the job."""
    corpus_sha256: str | None = None
    """SHA-256 of the training data."""
    tokens: int | None = None
    """Number of tokens of the training data."""
    sequences: int | None = None
    """Number of sequences of `data.seq_len` tokens in it."""
    host_name: str | None = None
    """Name of the machine."""
    machine: str | None = None
    """Processor architecture, such as x86_64."""
    cpus: int | None = None
    """Number of logical processors."""


@dataclass(frozen=True, kw_only=True)
class PhaseEvent(Event):
    """A phase of the main loop begins or ends; phases nest."""

    kind: ClassVar = "phase"
    name: str
    """Name of the phase: data, compile, restore, train, evaluate, save, commit, sample, ..."""
    edge: Edge
    """`begin` or `end`; a phase that fails has no end."""


@dataclass(frozen=True, kw_only=True)
class ProgressEvent(Event):
    """The program has prepared a part of its data."""

    kind: ClassVar = "progress"
    done: int
    """Units that are done."""
    total: int
    """Units in all."""
    unit: str | None = None
    """What is counted, in the plural."""


@dataclass(frozen=True, kw_only=True)
class HeartbeatEvent(Event):
    """The program is alive; sent every 2 s from a thread. events.jsonl does not keep it."""

    kind: ClassVar = "heartbeat"
    phase: str | None = None
    """The innermost phase; `start` before the first and `end` after the last one."""
    step: int | None = None
    """The last step that this process completed; 0 before the first."""
    cpu_probe_s: float | None = None
    """Seconds that a fixed millisecond of work took: more on a slow or busy processor."""
    busy_share: float | None = None
    """Seconds per second that the process computes or waits for a processor; in a disk wait, 1."""
    step_time_s: float | None = None
    """Mean seconds per step of the latest steps; absent before the first."""
    host_time_s: float | None = None
    """Mean seconds per step in which the main loop did not wait for the devices."""


@dataclass(frozen=True, kw_only=True)
class StepEvent(Event):
    """A training step is done. events.jsonl keeps those of process 0."""

    kind: ClassVar = "step"
    step: int
    """Number of the step, from 1."""
    loss: float | None = None
    """Mean cross-entropy per target, or DPO loss per pair, in nats."""
    grad_norm: float | None = None
    """Global L2 norm of the gradient, before clipping."""
    learning_rate: float | None = None
    """Learning rate of the step."""
    tokens: int | None = None
    """Tokens trained on since the first step of the run."""
    step_time_s: float | None = None
    """Seconds that the step took."""
    tokens_per_s: float | None = None
    """Tokens per second, of all devices together."""
    mfu: float | None = None
    """Model FLOP/s as a fraction of the devices' peak; absent when the peak is unknown."""
    data_wait_s: float | None = None
    """Seconds that the loop waited for the next batch."""
    epoch: int | float | None = None
    """Passes over the data, from 0."""
    examples: str | None = None
    """Digest of the step's examples, as 8 hexadecimal digits."""
    reward_margin: float | None = None
    """Mean reward of the chosen completions minus that of the rejected; absent without `dpo`."""
    reward_accuracy: float | None = None
    """Share of pairs whose chosen completion has the higher reward; absent without `dpo`."""


@dataclass(frozen=True, kw_only=True)
class SpikeEvent(Event):
    """The loss or gradient norm of a step is far above those before, or not finite."""

    kind: ClassVar = "spike"
    step: int
    """The step."""
    loss: float | None = None
    """Its loss, in nats per target; absent when it is not finite."""
    grad_norm: float | None = None
    """Its gradient norm, before clipping; absent when it is not finite."""
    loss_limit: float | None = None
    """The largest loss that is no spike; absent before enough steps are known."""
    grad_norm_limit: float | None = None
    """The largest gradient norm that is no spike; absent before enough steps are known."""
    action: SpikeAction | None = None
    """What followed, by the job's `on_spike`."""
    examples: str | None = None
    """Digest of the step's examples, as 8 hexadecimal digits."""


@dataclass(frozen=True, kw_only=True)
class WrongHostEvent(Event):
    """Hosts have computed other numbers than the rest from the same inputs."""

    kind: ClassVar = "wrong_host"
    step: int
    """The step before whose update it was found."""
    hosts: tuple[int, ...] = ()
    """Numbers of the processes whose hosts compute wrong; empty when that cannot be decided."""
    suspects: tuple[int, ...] = ()
    """Numbers of the processes among which one computes wrong; `hosts` when that is decided."""
    message: str | None = None
    """What differs."""


@dataclass(frozen=True, kw_only=True)
class EvalEvent(Event):
    """An evaluation is done."""

    kind: ClassVar = "eval"
    step: int | None = None
    """The step after which it ran."""
    eval_loss: float | None = None
    """Mean cross-entropy per target, or DPO loss per pair, on held-out data, in nats."""
    eval_perplexity: float | None = None
    """Exponential of `eval_loss`; absent with `dpo`."""
    eval_losses: Mapping[str, float] | None = None
    """Loss of each source of a mixture, by its name, in nats."""
    accuracy: float | None = None
    """Share of the multiple-choice questions that are answered correctly, from 0 to 1."""
    accuracy_normalized: float | None = None
    """The same when a choice counts by its log-likelihood per character."""
    tasks: Mapping[str, float] | None = None
    """Metrics of `eval.tasks`: name of the task, a slash, and name of the metric -> its value."""
    evaluation_s: float | None = None
    """Seconds that it took."""


@dataclass(frozen=True, kw_only=True)
class SampledEvent(Event):
    """The model has written a text."""

    kind: ClassVar = "sampled"
    step: int
    """The step after which it was written."""
    text: str
    """The text, cut to 2,000 characters."""


@dataclass(frozen=True, kw_only=True)
class SaveProgressEvent(Event):
    """A part of a checkpoint is written. events.jsonl does not keep it."""

    kind: ClassVar = "save_progress"
    step: int
    """Step of the checkpoint."""
    written: int
    """Bytes that this process has written."""
    total: int
    """Bytes of the whole checkpoint, of all processes together."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSavedEvent(Event):
    """A checkpoint is committed: the run can resume from it."""

    kind: ClassVar = "checkpoint_saved"
    step: int
    """Step of the checkpoint."""
    bytes: int | None = None
    """Its size in bytes."""
    seconds: float | None = None
    """Seconds from the begin of the save to the commit."""
    blocked_s: float | None = None
    """Seconds of these in which no step ran."""


@dataclass(frozen=True, kw_only=True)
class CheckpointIntervalEvent(Event):
    """At each start and after each save: the interval of `checkpoint.every_minutes: auto`."""

    kind: ClassVar = "checkpoint_interval"
    seconds: float
    """Seconds from the begin of a save to the begin of the next."""
    cost_s: float
    """Seconds of steps that a save costs: it blocks some, and slows those beside its write."""
    blocked_s: float
    """Seconds of these for which it blocks the steps."""
    slowed_s: float
    """Seconds by which steps beside its write are longer; noise may make it negative."""
    saves: int
    """Saves that were measured in this run; 0 when the cost is assumed."""
    mtbf_s: float
    """Mean time between faults that the interval allows for, of all hosts together, in seconds."""
    faults: int
    """Faults of the run so far that lost steps."""


@dataclass(frozen=True, kw_only=True)
class SaveFailedEvent(Event):
    """A checkpoint could not be saved. The run continues and saves again later."""

    kind: ClassVar = "save_failed"
    step: int
    """Step of the checkpoint."""
    message: str | None = None
    """The reason."""


@dataclass(frozen=True, kw_only=True)
class CheckpointsDiscardedEvent(Event):
    """The newest checkpoints are set aside, because a host may have computed them wrong."""

    kind: ClassVar = "checkpoints_discarded"
    newest: int | None = None
    """Step of the newest checkpoint that is left; absent when there is none."""


@dataclass(frozen=True, kw_only=True)
class RestoredEvent(Event):
    """A checkpoint is restored, and training resumes after its step."""

    kind: ClassVar = "restored"
    step: int
    """Step of the checkpoint."""
    examples: int | None = None
    """Examples that were used up to this step."""
    source: RestoreSource | None = None
    """Where it was read: storage, the memory of the hosts, or copies in that of neighbors."""
    message: str | None = None
    """Description for the user, if the program has printed one."""


@dataclass(frozen=True, kw_only=True)
class WarningEvent(Event):
    """Something that the user should know, after which the run continues."""

    kind: ClassVar = "warning"
    message: str | None = None
    """Description for the user."""
    category: str | None = None
    """`port_taken`, `stale` and `stopped` of a program; `host`, `log`, ... of the launcher."""


@dataclass(frozen=True, kw_only=True)
class ErrorEvent(Event):
    """The error that ends the program."""

    kind: ClassVar = "error"
    message: str | None = None
    """Description for the user, or the traceback."""
    category: str | None = None
    """`peer_lost` when the program cannot reach another process."""


@dataclass(frozen=True, kw_only=True)
class FinishedEvent(Event):
    """The program has done all its steps."""

    kind: ClassVar = "finished"
    step: int | None = None
    """The last step."""
    loss: float | None = None
    """Its loss, in nats."""
    sample: str | None = None
    """The text that the model wrote, cut to 2,000 characters."""


EVENT_TYPES: tuple[type[Event], ...] = (
    StartedEvent, InitializedEvent, CompiledEvent, CheckedEvent, PhaseEvent, ProgressEvent,
    HeartbeatEvent, StepEvent, SpikeEvent, WrongHostEvent, EvalEvent, SampledEvent,
    SaveProgressEvent, CheckpointSavedEvent, CheckpointIntervalEvent, SaveFailedEvent,
    CheckpointsDiscardedEvent, RestoredEvent, WarningEvent, ErrorEvent, FinishedEvent,
)  # fmt: skip
"""All events that a program may send."""
