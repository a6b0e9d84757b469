"""The errors that `launch` prints: the base and its kinds, and those of several providers."""

from pathlib import Path

from trainer.contract.errors import HostError, InternalError, JobError, SlipwayError, UsageError

__all__ = [
    "HostError",
    "InternalError",
    "InterruptError",
    "JobError",
    "MissingClientError",
    "RefusedError",
    "SlipwayError",
    "UnconfirmedError",
    "UnreachableError",
    "UsageError",
    "docs_link",
    "error_of",
]


class InterruptError(SlipwayError):
    """Raised when a signal or the budget ended a command early.

    Everything that it started has ended.
    """

    exit_code = 130


class UnreachableError(HostError):
    """Raised when a service or a storage does not answer. It may have carried out the request."""


class RefusedError(HostError):
    """Raised when a service has answered and refused a request."""


class UnconfirmedError(HostError):
    """Raised when it is unknown whether a queue has accepted a job."""


class MissingClientError(HostError):
    """Raised when the Python package of a provider's client is not installed."""


def docs_link(anchor: str) -> str:
    """Returns a sentence that refers to a section of the troubleshooting page."""
    return f"See docs/how-to/troubleshoot.md#{anchor}"


def error_of(exit_code: int, message: str, *, run_dir: Path | None = None) -> SlipwayError:
    """Returns the kind of error that ends `launch` with an exit code other than 0."""
    kinds = (UsageError, HostError, InterruptError)
    kind = next((kind for kind in kinds if kind.exit_code == exit_code), JobError)
    return kind(message, run_dir=run_dir)
