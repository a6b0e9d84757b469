"""The files of requests, in a hidden folder of the run's folder.

`.requests/ID/request.json` has the request. The command holds its lock for as long as it waits, so
however it ends, the driver notices. `.requests/ID/answers.jsonl` has the answers, a line each. The
command makes and removes the folder ID. Files work wherever the run's folder does: also when the
driver is on another machine that shares it, as in Slurm.
"""

from pathlib import Path

REQUESTS, REQUEST, ANSWERS = ".requests", "request.json", "answers.jsonl"
POLL_INTERVAL_S = 0.2
"""Seconds between two looks at the files, of either side. Each costs a call to the storage."""


def folder_of(run_dir: Path) -> Path:
    """Returns the folder with all requests of a run."""
    return run_dir / REQUESTS
