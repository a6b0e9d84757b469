"""Whether a host has what a run needs of it. Standard library only: its source is sent there."""

import os
from pathlib import Path


def lacking(python: str, code: str, working: str) -> list[str]:
    """What this host lacks, in words: the launcher's Python, its code's folder, its working one."""
    problems = []
    if not os.access(python, os.X_OK):
        problems.append(f"no Python at {python}")
    if not Path(code, "gang", "agent.py").exists():
        problems.append(f"no Slipway at {code}")
    if not Path(working).is_dir():
        problems.append(f"no folder {working}")
    return problems
