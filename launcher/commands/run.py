"""`launch run` and `launch resume`: start a run and, for JSON, print its status at the end."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher import api
from launcher.commands import status
from launcher.core.errors import SlipwayError
from launcher.core.json_output import print_json
from launcher.core.output import unfailing_output
from launcher.executors.handle import RunHandle
from launcher.executors.options import LaunchOptions
from launcher.notify.lost import notify_lost
from launcher.planning.spec import LaunchSpec
from launcher.runs.folder import find_run
from launcher.runs.status import read_status


@unfailing_output()
def run(spec: LaunchSpec, options: LaunchOptions) -> None:
    """Runs a job. Raises the error that ends the command."""
    with status_after_errors(as_json=options.as_json):
        handle = api.start(spec, options)
    print_status(handle, as_json=options.as_json)


@unfailing_output()
def resume(
    name: str, runs: Path, where: tuple[str | None, bool, int | None], options: LaunchOptions
) -> None:
    """Resumes a run. Raises the error that ends the command."""
    with status_after_errors(as_json=options.as_json):
        folder = find_run(name, runs)
        notify_lost([read_status(folder)])
        handle = api.restart(folder, where, options)
    print_status(handle, as_json=options.as_json)


@contextmanager
def status_after_errors(*, as_json: bool) -> Iterator[None]:
    """Prints the status of a run that ends with an error, if JSON is requested."""
    try:
        yield
    except SlipwayError as error:
        if as_json and error.run_dir:
            print_json(status.read(error.run_dir).result())
        raise


def print_status(handle: RunHandle, *, as_json: bool) -> None:
    """Prints the status of a run as JSON if requested."""
    if as_json and handle.forward("status", "-o", "json", terminal=False) is None:
        print_json(status.read(handle.folder).result())
