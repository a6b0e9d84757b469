"""Stop and save requests, combined across processes by a max inside the training step.

Each process puts its request into a small array with one element per device. The step returns the
largest, so every process has the same value after the same step. No barrier and no clock is needed,
and two processes can never decide differently.
"""

import signal
from enum import IntEnum
from types import FrameType

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class StopRequest(IntEnum):
    """A process's request in a step. The largest of all processes counts."""

    NOTHING = 0
    SAVE = 1
    STOP = 2
    """Save and end the run."""


class StopVote:
    """Arrays that carry a request, each made once, so that a step has no extra cost."""

    def __init__(self, mesh: Mesh) -> None:
        self._sharding = sharding(mesh)
        self._shape = (mesh.size,)
        self._arrays: dict[StopRequest, jax.Array] = {}

    def array(self, request: StopRequest) -> jax.Array:
        """Returns the array of all requests, int32 (devices,), with this process's part filled."""
        if request not in self._arrays:
            self._arrays[request] = jax.make_array_from_callback(
                self._shape, self._sharding, lambda index: np.full(1, request, np.int32)
            )
        return self._arrays[request]


def sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding with one element on each device."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


class StopSignal:
    """A SIGTERM, recorded as a stop request."""

    def __init__(self) -> None:
        self.received = False

    def listen(self) -> None:
        """Makes SIGTERM a stop request instead of the end of the process."""
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True
