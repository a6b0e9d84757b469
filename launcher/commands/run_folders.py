"""The folders of the runs that a command line names."""

from collections.abc import Sequence
from pathlib import Path

from launcher import api
from launcher.core.errors import SlipwayError, UsageError


def run_folders(names: Sequence[str], runs: Path) -> list[Path]:
    """Returns the folders of different runs, after copying those that are over elsewhere.

    Raises UsageError with a line for each run that is not found or still on another machine.
    """
    folders, problems = [], []
    for name in dict.fromkeys(names):
        try:
            folders.append(api.find_run(name, runs).fetch())
        except SlipwayError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("\n".join(problems))
    return list(dict.fromkeys(folders))
