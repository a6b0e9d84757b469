"""`launch stop`: requests from another terminal that a run save and end, and waits for it."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.core.exit_codes import INTERRUPTED, JOB_FAILED, OK, fail
from launcher.core.files import read_object
from launcher.core.formatting import format_seconds
from launcher.providers.kubernetes.cleanup import release
from launcher.runs import summary
from launcher.runs.directory import RunDir, RunFolderError, is_alive, run_word
from launcher.runs.known_process import KnownProcess
from launcher.runs.status import describe, read_status

ENDING_TIMEOUT_S = 60.0
"""Seconds to wait beyond the time that the programs have to save."""
OWNER_TIMEOUT_S = 10.0
"""Seconds to wait until a run that has just begun has recorded its process."""
SIGNALS_TIMEOUT_S, KILLED_TIMEOUT_S = 5.0, 30.0
LOOK_S = 0.1


def stop_run(folder: Path, *, now: bool, aside: bool = False) -> int:
    """Ends a run, with a checkpoint or immediately; returns the exit code of `launch`.

    `aside` prints messages on standard error. Raises RunFolderError when the run's process cannot
    be signalled from here, and HostError when leftovers of a dead run cannot be deleted.
    """
    console, errors = Console(stderr=aside), Console(stderr=True)
    if not is_alive(folder):
        if release(folder):
            console.print(Text("what it had left in Kubernetes is deleted"), soft_wrap=True)
        console.print(Text(f"not running: {describe(read_status(folder))}"), soft_wrap=True)
        return OK
    try:
        with _owner(folder) as owner:
            ended = _end_at_once(folder, owner) if now else _stop(folder, owner, console)
    except KeyboardInterrupt:
        message = f"not waited for any longer: {folder.name} goes on to stop"
        return fail(errors, message, INTERRUPTED)
    if not ended:
        message = f"{folder.name} still runs. To end it at once: {_command(folder)} --now"
        return fail(errors, message, JOB_FAILED)
    found = read_status(folder)
    console.print(Text(describe(found)), soft_wrap=True)
    return JOB_FAILED if found.exit_code == JOB_FAILED else OK


def _stop(folder: Path, owner: KnownProcess | None, console: Console) -> bool:
    """Stops the run in order, which takes as long as a checkpoint.

    Returns False when the run still runs after the deadline.
    """
    grace_s = read_object(folder / "state.json").get("grace_s") or 0.0
    timeout_s = grace_s + ENDING_TIMEOUT_S
    _send(owner, signal.SIGTERM)
    text = f"stopping {folder.name}, with a checkpoint (at once: {_command(folder)} --now)"
    with console.status(text) as status:
        if not console.is_terminal:
            console.print(Text(text), soft_wrap=True)

        def show(waited_s: float) -> None:
            status.update(f"{text}: {format_seconds(waited_s)} of {format_seconds(timeout_s)}")

        return _wait(lambda: not is_alive(folder), timeout_s, show)


def _end_at_once(folder: Path, owner: KnownProcess | None) -> bool:
    """Ends the launcher immediately by a second SIGTERM; its reapers end all that it started.

    Sends SIGKILL when that has no effect. Returns whether the run has ended.
    """

    def is_over() -> bool:
        _send(owner, signal.SIGTERM)
        return not is_alive(folder)

    if not _wait(is_over, SIGNALS_TIMEOUT_S):
        _send(owner, signal.SIGKILL)
    ended = _wait(lambda: not is_alive(folder), KILLED_TIMEOUT_S)
    if ended:
        _note_stop(folder)
    return ended


def _note_stop(folder: Path) -> None:
    """Records the stop of a run that was ended before it could record it."""
    found = read_status(folder)
    if found.state != "died":
        return
    saved = summary.read(folder).story.checkpoint
    with RunDir.open(folder) as run:
        run.set_state("stopped", step=found.step, checkpoint=saved and saved.step)


@contextmanager
def _owner(folder: Path) -> Iterator[KnownProcess | None]:
    """Yields the process that runs this run, or None when it has just ended.

    Raises RunFolderError when the process is not on this machine, or is another user's.
    """
    owner: KnownProcess | None = None

    def is_found() -> bool:
        nonlocal owner
        about = read_object(folder / "state.json")
        owner = KnownProcess.find(about.get("pid"), about.get("start_time"))
        return owner is not None or not is_alive(folder)

    if not _wait(is_found, OWNER_TIMEOUT_S):
        raise RunFolderError(
            f"{folder}: this run is running, but its process is none of this machine, or another "
            "user's: stop it there"
        )
    with owner or nullcontext():
        yield owner


def _send(owner: KnownProcess | None, number: signal.Signals) -> None:
    if owner is not None:
        owner.send(number)


def _wait(
    is_over: Callable[[], bool], timeout_s: float, show: Callable[[float], None] = lambda _: None
) -> bool:
    """Returns whether a condition held before the deadline; `show` receives the seconds so far."""
    began = time.monotonic()
    while not is_over():
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            return False
        show(waited_s)
        time.sleep(LOOK_S)
    return True


def _command(folder: Path) -> str:
    return f"launch stop {run_word(folder)}"
