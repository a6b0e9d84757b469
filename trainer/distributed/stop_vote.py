"""Stopping and saving at one step: what one process wishes, all learn through the step itself.

Each process puts its wish into a small array with one element per device. The step returns the
largest, and with it every process knows the same after the same step: no meeting, no clock, no
moment in which two processes can decide differently.
"""

import signal
from enum import IntEnum
from types import FrameType

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class StopRequest(IntEnum):
    NOTHING = 0
    SAVE = 1
    STOP = 2
    """Save, and end."""


class StopVote:
    """The arrays that say a wish; made once each, so that a step costs nothing for it."""

    def __init__(self, mesh: Mesh) -> None:
        self._sharding = sharding(mesh)
        self._shape = (mesh.size,)
        self._arrays: dict[StopRequest, jax.Array] = {}

    def array(self, wish: StopRequest) -> jax.Array:
        """This process's part of the wishes of all, (devices,)."""
        if wish not in self._arrays:
            self._arrays[wish] = jax.make_array_from_callback(
                self._shape, self._sharding, lambda index: np.full(1, wish, np.int32)
            )
        return self._arrays[wish]


def sharding(mesh: Mesh) -> NamedSharding:
    """One element on each device."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


class StopSignal:
    """SIGTERM, as a wish."""

    def __init__(self) -> None:
        self.received = False

    def listen(self) -> None:
        """From now on SIGTERM asks, and does not end."""
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True
