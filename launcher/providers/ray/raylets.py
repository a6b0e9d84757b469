"""The raylets of this machine, and what their command lines say of their Ray clusters."""

from collections.abc import Iterator
from pathlib import Path

import psutil

CLUSTER = "--gcs-address="
NODE_ID = "--node_id="


def of_this_machine(flag: str) -> set[str]:
    """Returns the values of a flag of all raylets."""
    processes = psutil.process_iter(["cmdline"])
    return {value for p in processes for value in _values(p.info["cmdline"], flag)}


def cluster_of_this_process() -> str | None:
    """Returns the address of the cluster whose raylet started this process or one of its parents.

    Returns None for a process that no raylet started.
    """
    for process in psutil.Process().parents():
        try:
            command = process.cmdline()
        except psutil.Error:
            continue
        if address := next(_values(command, CLUSTER), None):
            return address
    return None


def _values(command: list[str] | None, flag: str) -> Iterator[str]:
    """Yields the values of a flag in a command line, if that is a raylet's."""
    if command and Path(command[0]).name == "raylet":
        yield from (arg.removeprefix(flag) for arg in command if arg.startswith(flag))
