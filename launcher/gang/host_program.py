"""What an agent starts on its host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class HostProgram:
    """The program of one host."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """Variables that are added to those of the host."""
    log: str
    """The file of its output, on the host."""
    cwd: str
    grace_s: float
    """Seconds between SIGTERM and SIGKILL once its agent lets go of it, or is gone."""
    hosts: Sequence[str]
    """The addresses of all hosts, which the program reaches without a proxy."""
