"""Commands about a run that another machine has: they run there."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from launcher.cli.options import Output

if TYPE_CHECKING:
    from launcher.executors.handle import RunHandle


def json_words(output: Output) -> list[str]:
    """Returns the words that request this output on another command line."""
    return ["-o", "json"] if output is Output.json else []


def find_or_forward(run: str, runs: Path, *command: str) -> "RunHandle":
    """Returns the handle of a run of this machine.

    For a run that another machine has, runs the command there and exits with its exit code. Raises
    RunFolderError when there is no such run.
    """
    from launcher import api

    handle = api.find_run(run, runs)
    code = handle.forward(*command, terminal=sys.stdout.isatty())
    if code is not None:
        raise typer.Exit(code)
    return handle
