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
from trainer.contract.protocol.process_names import process_name, process_noun


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


def require_host(folder: Path, host: int) -> str:
    """Returns the name of a host of a live run, given by its number.

    Where hosts have several processes, it is the number of a process. Raises RunFolderError when
    there is none of this number.
    """
    world = read_world(require_programs(folder))
    per_host = world.processes_per_host if world else 1
    if world and host >= world.processes:
        noun = process_noun(per_host)
        known = f"{pluralize(world.processes, noun)}, 0 to {world.processes - 1}"
        raise RunFolderError(f"{folder.name} has no {noun} {host}: it has {known}")
    return process_name(host, per_host)
