"""A request to trace the next steps of a process: a file in the run's folder on its host.

SIGUSR2 announces the file. The trainer removes it once the trace is written.
"""

import json
from pathlib import Path

from trainer.contract.protocol.process_names import file_stem


def folder_of(run_dir: Path, process: int, processes_per_host: int = 1) -> Path:
    """Returns the folder of a process's traces."""
    return run_dir / "profile" / file_stem(process, processes_per_host)


def path_of(run_dir: Path, process: int, processes_per_host: int = 1) -> Path:
    """Returns the path of the request to a process."""
    return folder_of(run_dir, process, processes_per_host) / "request.json"


def write(path: Path, steps: int) -> None:
    """Writes a request to trace so many steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"steps": steps}), encoding="utf-8")


def read(path: Path) -> int | None:
    """Returns the number of steps to trace; None without a valid request."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    steps = found.get("steps") if isinstance(found, dict) else None
    return steps if isinstance(steps, int) and steps > 0 else None
