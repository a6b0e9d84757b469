"""`python -m trainer JOB_FILE`: one process of a run, under the launcher or by hand."""

import argparse
import errno
import faulthandler
import logging
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from trainer import standby
from trainer.checkpoint.errors import FolderError, RestoreError, SaveError, StaleError, StoppedError
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, dump, load
from trainer.contract.planning.planner import PlanError
from trainer.contract.protocol.environment import START_FD
from trainer.contract.protocol.events import (
    PEER_LOST,
    PORT_TAKEN,
    REWOUND,
    STALE,
    WRONG_HOST,
    ErrorEvent,
    WarningEvent,
)
from trainer.contract.protocol.exit_codes import ProgramExit
from trainer.contract.records.checkpoint_metadata import FormatError
from trainer.contract.records.compatibility import code_of
from trainer.contract.storage import retries
from trainer.contract.storage.corpus import DataError
from trainer.distributed.process_env import Environment
from trainer.distributed.quick_exit import quick_exit
from trainer.integrity.errors import WrongHostError
from trainer.preflight import Inputs, check
from trainer.step.spikes import RewindError
from trainer.telemetry.events import Events

NO_ERROR = ("stopped", STALE, PORT_TAKEN, REWOUND, WRONG_HOST)
PEERS = re.compile(
    r"gloo|connection (closed|reset|refused)|broken pipe|heartbeat|coordination|UNAVAILABLE",
    re.IGNORECASE,
)
"""JAX's messages about processes that it can no longer reach."""
FULL = (errno.ENOSPC, errno.EDQUOT)
ALIKE = (ProgramExit.BAD_CONFIGURATION, ProgramExit.BAD_DATA, ProgramExit.STOPPED)
LEAVE_S = 1.0
"""Delay of process 0's exit when all processes find the same error. Process 0 holds the
coordinator, whose end would end the other processes before they report."""

Work = Callable[[Job, Environment, Events], None]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the contract's exit code."""
    options = _options(arguments)
    if options is None:
        return ProgramExit.FINISHED
    process = _Process(options)
    if options.check:
        code = process.run(process.check)
        if code or not options.standby:
            return code
    if options.standby and not process.wait_for_start():
        return ProgramExit.FINISHED
    standby.name_process("trainer")
    return process.run(process.train)


def _options(arguments: list[str] | None) -> argparse.Namespace | None:
    """Returns the options; those of a standby process without a job arrive with its run.

    Returns None when no run needs such a process.
    """
    options = _parser().parse_args(arguments)
    if options.job is not None:
        return options
    if not options.standby:
        _parser().error("the following arguments are required: job")
    received = standby.wait_for_run(int(os.environ[START_FD]))
    return None if received is None else _parser().parse_args(received)


class _Process:
    """The work of this process, which trains on what it has read in its check."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._job: Job | None = None
        self._checked: Inputs | None = None

    def run(self, work: Work) -> int:
        """Does one kind of work with the job; reports errors, and returns the exit code."""
        environment = Environment.read(os.environ)
        events = Events(environment)
        events.start_heartbeat()
        warnings = _Warnings(events)
        retries.log.addHandler(warnings)
        try:
            work(self._load(), environment, events)
            return ProgramExit.FINISHED
        except BaseException as error:
            code, message, category = _translate(error, environment.attempt)
            print(message, file=sys.stderr, flush=True)
            last_event = WarningEvent if category in NO_ERROR else ErrorEvent
            events.emit(last_event(message=message, category=category), last_word=True)
            if code in ALIKE and environment.process == 0 and environment.processes > 1:
                time.sleep(LEAVE_S)
            return code
        finally:
            retries.log.removeHandler(warnings)
            events.stop_heartbeat()

    def check(self, job: Job, _environment: Environment, events: Events) -> None:
        """Checks this host."""
        self._checked = check(job, events)

    def wait_for_start(self) -> bool:
        """Waits for the start of an attempt, and returns whether it came."""
        job = self._load()
        return standby.wait_for_start(int(os.environ[START_FD]), lambda: code_of(job))

    def train(self, job: Job, environment: Environment, events: Events) -> None:
        """Trains until the run ends."""
        # Imported late: the check of a host must not wait for jax.
        standby.import_trainer()
        from trainer.train import train

        run_dir = environment.run_dir or _new_run_dir(job)
        run_dir.mkdir(parents=True, exist_ok=True)
        train(job, environment, run_dir, events, self._checked)

    def _load(self) -> Job:
        if self._job is None:
            self._job = load(self._options.job, Job, self._options.overrides).value
        return self._job


def _new_run_dir(job: Job) -> Path:
    """Creates runs/NAME in the working directory, with the resolved job, for a run by hand."""
    folder = Path("runs") / job.name
    if folder.exists():
        raise ConfigError([f"{folder} already exists. Choose another name with name=..."])
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(dump(job), encoding="utf-8")
    return folder


def _translate(error: BaseException, attempt: int = 1) -> tuple[ProgramExit, str, str | None]:
    """Returns the exit code, the message, and its category when the launcher must know it."""
    if attempt > 1 and isinstance(error, DataError) and _is_of_storage(error):
        return ProgramExit.FAILED, f"{error}. An earlier attempt could read it", None
    if isinstance(error, StoppedError):
        return ProgramExit.STOPPED, str(error), "stopped"
    if isinstance(error, RewindError):
        return ProgramExit.STOPPED, str(error), REWOUND
    if isinstance(error, WrongHostError):
        return ProgramExit.STOPPED, str(error), WRONG_HOST if error.is_here else REWOUND
    if isinstance(error, StaleError):
        return ProgramExit.STOPPED, str(error), STALE
    if isinstance(error, (SaveError, RestoreError, retries.StorageError)):
        return ProgramExit.FAILED, str(error), None
    if isinstance(error, (ConfigError, PlanError, FolderError, FormatError)):
        return ProgramExit.BAD_CONFIGURATION, str(error), None
    if isinstance(error, (DataError, ArithmeticError)):
        return ProgramExit.BAD_DATA, str(error), None
    if isinstance(error, KeyboardInterrupt):
        return ProgramExit.INTERRUPTED, "interrupted", None
    if isinstance(error, OSError) and error.errno in FULL:
        where = error.filename or "the run's folder"
        return ProgramExit.FAILED, f"cannot write to {where}: {error.strerror}", None
    # Matched by name: importing its module would import jax.
    if type(error).__name__ == "PortTakenError":
        return ProgramExit.FAILED, str(error), PORT_TAKEN
    category = PEER_LOST if _is_of_peers(error) else None
    return ProgramExit.FAILED, "".join(traceback.format_exception(error)).rstrip(), category


def _is_of_storage(error: BaseException) -> bool:
    return any(isinstance(one, OSError) for one in retries.chain(error))


class _Warnings(logging.Handler):
    """Sends each log record to the launcher as a warning, and prints it."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        print(f"warning: {message}", file=sys.stderr, flush=True)
        self._events.emit(WarningEvent(message=message))


def _is_of_peers(error: BaseException) -> bool:
    """Returns whether the error is about other processes that are gone, not about this one."""
    waited = isinstance(error, TimeoutError) and "all processes" in str(error)
    is_jax = type(error).__name__ == "JaxRuntimeError"
    return waited or (is_jax and PEERS.search(str(error)) is not None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    parser.add_argument(
        "job", type=Path, nargs="?", help="the job file; with --standby it may follow on the pipe"
    )
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE pairs that override the job file")
    parser.add_argument(
        "--check",
        action="store_true",
        help="check this host and its data, and train only after the start of --standby",
    )
    parser.add_argument(
        "--standby",
        action="store_true",
        help=f"import everything, then wait for the start on the pipe {START_FD}",
    )
    return parser


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    quick_exit(main())
