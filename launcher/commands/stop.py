"""`launch stop`: stops a run, and shows how far that is."""

from rich.console import Console
from rich.status import Status
from rich.text import Text

from launcher.commands.run import print_status, status_after_errors
from launcher.core.errors import JobError
from launcher.core.events import Listener
from launcher.core.exit_codes import JOB_FAILED
from launcher.core.states import RunState
from launcher.executors.handle import RunHandle
from launcher.runs.status import describe


def stop_run(handle: RunHandle, *, force: bool, as_json: bool) -> None:
    """Stops a run and prints its last status.

    Raises JobError for a run that fails while it stops, and what `RunHandle.stop` raises.
    """
    console = Console(stderr=as_json)
    before = handle.status()
    was_running = before.is_alive or before.state is RunState.QUEUED
    with status_after_errors(as_json=as_json):
        with console.status("") as status:
            handle.stop(force=force, listener=_Progress(console, status))
        found = handle.status()
        text = describe(found)
        console.print(Text(text if was_running else f"not running: {text}"), soft_wrap=True)
        if was_running and found.exit_code == JOB_FAILED:
            raise JobError(f"{found.name} failed while it stopped", run_dir=handle.folder)
    print_status(handle, as_json=as_json)


class _Progress(Listener):
    """Shows the status in one line on a terminal, and its first text elsewhere."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status, self._first = console, status, ""

    def on_status(self, text: str) -> None:
        self._status.update(text)
        if not self._console.is_terminal and not text.startswith(self._first or text + " "):
            self._console.print(Text(text), soft_wrap=True)
            self._first = text
