"""The messages between a job's batch host and the tasks of its `srun`, besides those of every host.

All tasks read the same orders: JobOrder, then HeadAddress once the first task has sent HeadPort.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from launcher.core.messages import Message
from launcher.providers.ray.host_protocol import Failed, HeadPort, NodeUp
from trainer.contract.planning.plan import World


@dataclass(frozen=True)
class JobOrder(Message):
    """The order to start Ray nodes, as far as it is the same for all tasks."""

    kind: ClassVar = "job"
    token: str = field(repr=False)
    world: World


@dataclass(frozen=True)
class HeadAddress(Message):
    """The address of the head, for the other tasks."""

    kind: ClassVar = "head"
    ip: str
    port: int


@dataclass(frozen=True)
class HostAddress(Message):
    """The address by which Slurm reaches the task's host."""

    kind: ClassVar = "address"
    ip: str


@dataclass(frozen=True)
class SignalReceived(Message):
    """Slurm has sent a signal to the task."""

    kind: ClassVar = "signal"
    number: int


TaskAnswer = HostAddress | HeadPort | NodeUp | Failed | SignalReceived
ANSWER_TYPES = (HostAddress, HeadPort, NodeUp, Failed, SignalReceived)
"""Messages that a task sends and that the batch host reads."""
