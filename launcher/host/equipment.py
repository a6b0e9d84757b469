"""Whether a host has what a run needs of it. Standard library only: its source is sent there."""

import os
from pathlib import Path


def lacking(python: str, code: str, folder: str, run_id: str) -> list[str]:
    """What this host lacks, in words.

    `python`: the launcher's Python. `code`: the folder of its code. `folder`: the run's, with the
    file run_id that holds `run_id`.
    """
    problems = []
    if not os.access(python, os.X_OK):
        problems.append(f"no Python at {python}")
    if not Path(code, "agent.py").exists():
        problems.append(f"no Slipway at {code}")
    try:
        is_the_run = Path(folder, "run_id").read_text() == run_id
    except OSError:
        is_the_run = False
    if not is_the_run:
        problems.append(f"it does not see {folder}")
    return problems
