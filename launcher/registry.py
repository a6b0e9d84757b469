"""The runs that this user has started, from whatever folder: one small file for each."""

import hashlib
import json
from pathlib import Path

from launcher.files import read_object, replace_file, state_folder


def note(folder: Path) -> None:
    """Remember a run by its folder, for commands that are called elsewhere."""
    runs = state_folder() / "runs"
    try:
        runs.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(runs / _file_name(folder), json.dumps({"folder": str(folder)}))
    except OSError:
        pass  # no home to write to: the run is found by its path


def noted() -> list[Path]:
    """The folders of all runs that are still there; what is gone is forgotten."""
    found = []
    for entry in sorted((state_folder() / "runs").glob("*.json")):
        folder = Path(read_object(entry).get("folder", ""))
        if is_run(folder):
            found.append(folder)
        else:
            entry.unlink(missing_ok=True)
    return found


def is_run(folder: Path) -> bool:
    return (folder / "job.yaml").is_file()


def _file_name(folder: Path) -> str:
    return f"{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}.json"
