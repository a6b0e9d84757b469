"""Checks what a run needs on a host. Standard library only: its source is sent to the host."""

import os
from pathlib import Path


def lacking(python: str, code: str, working: str) -> list[str]:
    """Describes what this host lacks: the launcher's Python, its code, its working directory."""
    problems = []
    if not os.access(python, os.X_OK):
        problems.append(f"no Python at {python}")
    if not Path(code, "gang", "agent.py").exists():
        problems.append(f"no Slipway at {code}")
    if not Path(working).is_dir():
        problems.append(f"no folder {working}")
    return problems
