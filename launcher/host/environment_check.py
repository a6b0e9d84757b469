"""Checks what a run needs on a host. Standard library only: its source is sent to the host."""

import os
from pathlib import Path


def lacking(python: str, code: str, working: str) -> list[str]:
    """Returns a text for each thing that this host lacks: Python, Slipway, the working folder."""
    problems = []
    if not os.access(python, os.X_OK):
        problems.append(f"no Python at {python}")
    if not Path(code, "gang", "agent.py").exists():
        problems.append(f"no Slipway at {code}")
    if not Path(working).is_dir():
        problems.append(f"no working folder {working}")
    return problems
