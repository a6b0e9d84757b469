"""The run directory: what is written where. See "A run on disk" in the README."""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.spec.config import dump
from trainer.spec.job import Job
from trainer.spec.plan import Plan


class RunFolderError(ValueError):
    """The run's folder cannot be made; says why, and how to start anyway."""


class Run:
    """One run's folder; makes it, and everything in it but what the trainer writes.

    The lock on events.jsonl says that the run is alive: it goes with this process, however it ends.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._events = (folder / "events.jsonl").open("a", encoding="utf-8")
        fcntl.flock(self._events, fcntl.LOCK_EX | fcntl.LOCK_NB)

    @classmethod
    def create(cls, folder: Path, job: Job, plan: Plan, *, fresh: bool = False) -> "Run":
        """Make the folder with the resolved job and the first plan.

        An earlier run of the name is moved aside with `fresh`. Raises RunFolderError where there is
        one without, where it is running, and where the folder cannot be made.
        """
        if fresh and folder.exists():
            _move_aside(folder)
        try:
            folder.mkdir(parents=True)
            (folder / "logs").mkdir()
        except FileExistsError:
            raise RunFolderError(
                f"{folder}: there is a run of this name already. Give this one another name "
                "(name=...), or move the old one aside and start anew (--fresh)"
            ) from None
        except OSError as error:
            raise RunFolderError(
                f"{folder}: the run's folder cannot be made: {error.strerror}. "
                "Say --runs DIR for another place"
            ) from None
        (folder / "job.yaml").write_text(dump(job), encoding="utf-8")
        run = cls(folder)
        run.write_plan(1, plan)
        run.set_state("starting", attempt=1)
        return run

    def write_plan(self, attempt: int, plan: Plan) -> None:
        """plans/0001.json: what was planned for an attempt."""
        plans = self.folder / "plans"
        plans.mkdir(exist_ok=True)
        replace_file(plans / f"{attempt:04d}.json", plan.model_dump_json(indent=2))

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Append to events.jsonl, at once."""
        self._events.write(json.dumps(event) + "\n")
        self._events.flush()

    def set_state(self, state: str, **fields: Any) -> None:
        """Replace state.json: a reader sees the old one or the new one, never a part."""
        text = json.dumps({"state": state, "time": time.time(), "pid": os.getpid(), **fields})
        replace_file(self.folder / "state.json", text)

    def close(self) -> None:
        self._events.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def state_folder() -> Path:
    """Where Slipway remembers things between commands, by the XDG rules."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "slipway"


def _move_aside(folder: Path) -> None:
    """To NAME.1, NAME.2, ...; never a run that is alive."""
    if _is_alive(folder):
        raise RunFolderError(
            f"{folder}: this run is running now. End it first, or say name=... for another one"
        )
    number = 1
    while (moved := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(moved)


def _is_alive(folder: Path) -> bool:
    try:
        with (folder / "events.jsonl").open("a", encoding="utf-8") as events:
            fcntl.flock(events, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
