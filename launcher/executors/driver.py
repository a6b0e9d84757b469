"""The process that drives a detached run: `python -m launcher.executors.driver`.

It reads a pickled DriverOrder from standard input, and answers once it holds the run's lock. It is
in its own session, so that no terminal ends it.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Console

from launcher.core.background import leave_parent, redirect_streams
from launcher.core.environment import child_environment
from launcher.core.errors import InternalError, SlipwayError, error_of
from launcher.core.exit_codes import OK, print_error
from launcher.core.messages import Message, MessageReader, encode
from launcher.core.output import unfailing_output
from launcher.core.quick_exit import run_and_exit
from launcher.planning.spec import LaunchSpec
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError
from launcher.runs.history import LastCheckpoint
from launcher.runs.state_file import RecordedState

MODULE = "launcher.executors.driver"


@dataclass(frozen=True)
class DriverOrder:
    """A run that a driver process starts or resumes."""

    spec: LaunchSpec
    is_new: bool
    """Whether the driver creates the run's directory; it opens an existing one otherwise."""
    fresh: bool = False
    """Whether an existing run of the same name is moved aside."""
    before: RecordedState | None = None
    """State of an existing run when the command decided to resume it."""
    saved: LastCheckpoint | None = None
    """Checkpoint that the run resumes from."""

    def open(self) -> RunDir:
        """Returns the run's directory, locked by this process. Raises RunFolderError.

        An existing run is refused when its state has changed since the command read it: then
        another process has begun this attempt, or has stopped the run.
        """
        if self.is_new:
            return RunDir.create(self.spec, fresh=self.fresh)
        run = RunDir.open(self.spec.run_dir)
        if run.recorded != self.before:
            run.close()
            raise RunFolderError(f"{run.folder}: another command has started or stopped it since")
        run.begin(self.spec.within_limit)
        return run


@dataclass(frozen=True)
class Held(Message):
    """The answer of a driver that holds the run."""

    kind: ClassVar = "held"


@dataclass(frozen=True)
class Refused(Message):
    """The answer of a driver that could not take the run."""

    kind: ClassVar = "refused"
    reason: str
    exit_code: int
    """Exit code of the error, see `error_of`."""


def start(order: DriverOrder) -> None:
    """Starts a driver, and returns once it holds the run.

    Raises SlipwayError with the reason when the driver could not take the run.
    """
    with subprocess.Popen(
        [sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    ) as process:
        reader = MessageReader((Held, Refused), "the driver", InternalError)
        answer = reader.parse(process.communicate(pickle.dumps(order))[0])
    if answer is None:
        raise InternalError("the process that drives the run ended without an answer")
    if isinstance(answer, Refused):
        raise error_of(answer.exit_code, answer.reason)


def main() -> int:
    """Serves one order, in a process that this process's parent does not wait for."""
    order: DriverOrder = pickle.load(sys.stdin.buffer)
    leave_parent()
    answers = os.dup(1)
    try:
        with _taken(order) as run:
            _answer(answers, Held())
            return _drive(order, run)
    except SlipwayError as error:
        _answer(answers, Refused(str(error), error.exit_code))
        return error.exit_code


@contextmanager
def _taken(order: DriverOrder) -> Iterator[RunDir]:
    """Locks the run, and redirects the standard streams. Raises RunFolderError."""
    with order.open() as run:
        try:
            redirect_streams(run.folder / "logs" / "launch.log")
        except OSError as error:
            raise RunFolderError(f"{run.folder}: the run could not be detached: {error}") from None
        yield run


def _answer(descriptor: int, answer: Message) -> None:
    """Sends an answer and ends the connection to the command."""
    with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as answers:
        answers.write(encode(answer))


@unfailing_output()
def _drive(order: DriverOrder, run: RunDir) -> int:
    from launcher.executors.drive import drive, reporting_disk_errors  # imports Ray: slow

    try:
        with reporting_disk_errors(run.folder):
            drive(order.spec, run, order.saved, Console())
    except SlipwayError as error:
        return print_error(error)
    return OK


if __name__ == "__main__":
    from launcher.executors import driver  # the class that was pickled is the module's

    run_and_exit(driver.main)
