"""The environment of child processes."""

import os
from pathlib import Path


def child_environment() -> dict[str, str]:
    """Returns this process's environment for a child that imports Slipway from any folder."""
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
