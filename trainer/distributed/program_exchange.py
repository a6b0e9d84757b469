"""Programs that process 0 compiles for all processes of an attempt.

Simulated hosts share the cores of one machine: if each of them compiled the same program, a start
on four hosts would compile it four times. Programs pass through JAX's coordination service.
"""

from typing import Any

import jax

from trainer.contract.config.job import Deadlines
from trainer.distributed.private import distributed as jax_distributed

PREFIX = "slipway/programs/"
KEEPS = "kept"
"""Key by which process 0 says whether it keeps programs."""


class ProgramExchange:
    """Sends programs from process 0, and receives them on the others."""

    def __init__(self, client: Any, deadlines: Deadlines) -> None:
        """`client` is that of JAX's coordination service. `deadlines` limit the waits."""
        self._client = client
        self._limit_s = deadlines.compile_s
        self.sends = jax.process_index() == 0

    def is_agreed(self, keeps_programs: bool) -> bool:
        """Returns whether process 0 keeps its programs, and thus sends them; all must ask.

        Raises TimeoutError like `receive`.
        """
        if self.sends:
            self.send(KEEPS, b"yes" if keeps_programs else b"no")
            return keeps_programs
        return self.receive(KEEPS) == b"yes"

    def send(self, name: str, data: bytes) -> None:
        """Sends a program; empty `data` says that each process must find or compile its own."""
        self._client.key_value_set_bytes(PREFIX + name, data)

    def receive(self, name: str) -> bytes:
        """Waits until process 0 has sent a program, and returns what it sent.

        Raises TimeoutError after `deadlines.compile_s`.
        """
        try:
            return self._client.blocking_key_value_get_bytes(
                PREFIX + name, int(self._limit_s * 1000)
            )
        except jax.errors.JaxRuntimeError as error:
            raise TimeoutError(
                f"process 0 did not compile '{name}' within {self._limit_s:.0f} s "
                f"(deadlines.compile_s): {error}"
            ) from error


def for_attempt(deadlines: Deadlines, *, on_cpu: bool) -> ProgramExchange | None:
    """Returns the exchange of an attempt with several processes on CPU, else None."""
    client = jax_distributed.global_state.client
    if client is None or not on_cpu:
        return None
    return ProgramExchange(client, deadlines)
