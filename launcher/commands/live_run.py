"""What the commands share that ask something of the programs of a live run."""

from collections.abc import Generator
from functools import partial
from pathlib import Path

from launcher.commands.status import read_world
from launcher.core.formatting import pluralize
from launcher.core.states import RunState
from launcher.requests.client import ask
from launcher.requests.messages import Answer, Request
from launcher.runs.folder import RunFolderError, is_alive, run_word
from launcher.runs.status import RunStatus, describe, read_status


def ask_run(folder: Path, request: Request) -> Generator[Answer]:
    """Sends a request to a run, and yields the answers; see `ask`.

    Raises RunFolderError when no program of the run is running.
    """
    require_programs(folder)
    return ask(folder, request, partial(is_alive, folder))


def require_programs(folder: Path) -> RunStatus:
    """Returns the status of a run whose programs run. Raises RunFolderError for any other run."""
    found = read_status(folder)
    if not found.is_alive:
        raise RunFolderError(f"not running: {describe(found)}")
    if found.state is not RunState.RUNNING:
        raise RunFolderError(
            f"{found.name} runs no programs now: its state is {found.displayed_state}. "
            f"Try again later; `launch status {run_word(folder)}` shows its state"
        )
    return found


def require_host(folder: Path, host: int) -> None:
    """Raises RunFolderError when a live run has no host of this number."""
    world = read_world(require_programs(folder))
    if world and host >= world.processes:
        hosts = f"{pluralize(world.processes, 'host')}, 0 to {world.processes - 1}"
        raise RunFolderError(f"{folder.name} has no host {host}: it has {hosts}")
