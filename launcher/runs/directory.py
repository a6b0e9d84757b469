"""The run directory: what is written where. See "A run on disk" in the README."""

import errno
import json
import os
import shlex
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from launcher.cluster.schema import ClusterRef
from launcher.core.environment import INSIDE
from launcher.core.files import (
    LOCK_TIMEOUT_S,
    NoLocksError,
    end_torn_line,
    free_name,
    is_locked,
    lock,
    read_object,
    replace_file,
)
from launcher.core.results import AttemptResult
from launcher.host.process_tree import start_time
from launcher.planning.spec import LaunchSpec
from launcher.runs import live, registry, storage
from launcher.runs.phases import is_kept
from launcher.runs.records import KubernetesRecord
from launcher.runs.slurm_job import queued
from trainer.contract.config.errors import suggest
from trainer.contract.config.loader import dump

KEPT = ("attempt", "cluster", "steps", "grace_s", "launched_in")
"""What state.json says of an attempt, whatever its state."""
QUEUED = "queued"
"""The state of a run that a queue is to start."""
POSITION = ("step", "checkpoint")
"""What state.json says of how far a run has come."""
RUN_ID = "SLIPWAY_RUN_ID"
"""In the environment of a `launch` that another machine has started: the run's id."""
REMOTE = "remote.json"
"""In a folder that is to have the copy of a run on another machine: where that is."""
LEFT = (REMOTE, KubernetesRecord.FILE)
"""In a run's folder while the run may have something elsewhere: `launch stop` ends it."""
REQUEUED_LOCK_TIMEOUT_S = 300.0


class RunFolderError(ValueError):
    """The run's folder cannot be used as it is asked for; says why, and what to do instead."""


class RunDir:
    """One run's folder; makes it, and everything in it but what the trainer writes.

    The lock on events.jsonl says that the run is alive: it goes with this process, however it ends.
    """

    def __init__(self, folder: Path) -> None:
        _refuse_queued(folder)
        self.folder = folder
        self._kept: dict[str, Any] = {}
        self._noted: dict[str, Any] = {}
        self._writing = threading.Lock()
        self._live = live.LiveFiles(lambda: self.folder)
        self._events = (folder / "events.jsonl").open("a", encoding="utf-8")
        try:
            _lock(folder, self._events)
        except RunFolderError:
            self._events.close()
            raise

    @classmethod
    def create(cls, launch: LaunchSpec, *, fresh: bool = False) -> "RunDir":
        """Make the folder with the resolved job and the first plan.

        An earlier run of the name is moved aside with `fresh`. Raises RunFolderError where there is
        one without, where it is running, and where the folder cannot be made.
        """
        run = cls.make(launch, fresh=fresh)
        run.begin(launch)
        return run

    @classmethod
    def make(cls, launch: LaunchSpec, *, fresh: bool) -> "RunDir":
        """The folder of a run that does not begin yet. Raises RunFolderError, see `create`.

        It is complete and locked before it has its name.
        """
        folder = launch.run_dir
        earlier = _earlier(folder, fresh=fresh)
        try:
            storage.refuse_others(launch, earlier)
            with _complete(folder, dump(launch.job)) as making:
                run_id = os.environ.get(RUN_ID) or uuid.uuid4().hex
                replace_file(making / "run_id", run_id + "\n")
                run = cls(making)
                if earlier:
                    storage.move_aside(launch, earlier)
                    earlier.rename(free_name(earlier))
        except storage.StorageError as error:
            raise RunFolderError(str(error)) from None
        run.folder = folder
        return run

    @classmethod
    def open(cls, folder: Path) -> "RunDir":
        """An earlier run, to go on with. Raises RunFolderError where it is running.

        An `opened` event tells from when on its time is counted again.
        """
        run = cls(folder)
        for name in ("events.jsonl", "metrics.jsonl", "samples.jsonl"):
            end_torn_line(folder / name)
        if heard := live.read(folder).heard:
            run.add_event({"event": "heard", "time": heard})
        run._kept = {name: value for name, value in run.state.items() if name in KEPT}
        run.add_event({"event": "opened", "time": time.time()})
        return run

    def begin(self, launch: LaunchSpec) -> None:
        """Write down an attempt: the job as it is now, its plan, and where it runs."""
        plans = self.folder / "plans"
        plans.mkdir(exist_ok=True)
        replace_file(plans / f"{launch.attempt:04d}.json", launch.plan.model_dump_json(indent=2))
        self._keep(launch)
        self.set_state("provisioning")

    def wait_in_queue(self, launch: LaunchSpec) -> None:
        """Write down the job for an attempt that begins later."""
        self._keep(launch)
        self.set_state(QUEUED, **{name: self.state.get(name) for name in POSITION})

    def _keep(self, launch: LaunchSpec) -> None:
        replace_file(self.folder / "job.yaml", dump(launch.job))
        (self.folder / "logs").mkdir(exist_ok=True)
        registry.note(self.folder, launch.job.secrets)
        self._kept = {
            "attempt": launch.attempt,
            "cluster": launch.cluster_ref.model_dump(),
            "steps": launch.steps,
            "grace_s": launch.grace_s,
            "launched_in": str(Path.cwd()),
        }

    @property
    def last_attempt(self) -> int:
        """By the plans that are written down; 0: none is."""
        plans = (self.folder / "plans").glob("*.json")
        return max((int(path.stem) for path in plans if path.stem.isdecimal()), default=0)

    @property
    def state(self) -> dict[str, Any]:
        """state.json; empty for a run that was started by hand."""
        return read_object(self.folder / "state.json")

    @property
    def cluster_ref(self) -> ClusterRef:
        """What the last attempt's cluster was asked for with."""
        return ClusterRef.model_validate(self.state.get("cluster") or {})

    @property
    def launched_in(self) -> Path:
        """See `launched_in`."""
        return launched_in(self.folder)

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Append to events.jsonl, at once, what a run keeps; see `is_kept`.

        Hosts' events get `received`, the time here: their own `time` is by clocks that may be off.
        """
        if "process" in event:
            received = time.time()
            self._live.on_event(event, received)
            event = {**event, "received": received}
        if is_kept(event):
            with self._writing:
                self._live.on_written(self._events.write(json.dumps(event) + "\n"))
                self._events.flush()

    def set_state(self, state: str, **fields: Any) -> None:
        """Replace state.json, and append a `state` event where the state, or its reason, changes.

        Of `fields`, `reason` says why the run is in this state.
        """
        now, pid = time.time(), os.getpid()
        about = {"state": state, "time": now, "pid": pid, "start_time": start_time(pid)}
        replace_file(self.folder / "state.json", json.dumps({**self._kept, **fields, **about}))
        reason = {"reason": fields["reason"]} if fields.get("reason") else {}
        change = {"attempt": self._kept.get("attempt"), "state": state, **reason}
        if change != self._noted:
            self._noted = change
            self.add_event({"event": "state", "time": now, **change})

    def end_attempt(self, ending: AttemptResult) -> None:
        """Note how an attempt ended, for `launch status` and for the goodput."""
        about = {"kind": ending.kind.value, "reason": ending.reason, "process": ending.process}
        event = {"event": "attempt_ended", "time": time.time(), **about, "step": ending.step}
        self.add_event({**event, "attempt": self._kept["attempt"]})

    def hold(self) -> None:
        """Say that it is this process, a fork of the one before, that runs the run now."""
        self.set_state(**self.state)

    def close(self) -> None:
        self._live.close()
        with suppress(OSError):  # what a full disk did not take has been told of
            self._events.close()

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def make_folder(folder: Path, job: str, *, fresh: bool) -> None:
    """A folder for the copy of a run, with its job; an earlier one is moved aside with `fresh`.

    Raises RunFolderError, see `Run.create`.
    """
    earlier = _earlier(folder, fresh=fresh)
    with _complete(folder, job):
        if earlier:
            earlier.rename(free_name(earlier))


def find_run(name_or_path: str, runs: Path) -> Path:
    """The folder of a run: by its name in `runs`, by a path, or by its name anywhere.

    Raises RunFolderError for an unknown name, and for one that several runs elsewhere have.
    """
    for folder in (runs / name_or_path, Path(name_or_path)):
        if registry.is_run(folder):
            return folder.absolute()
    elsewhere = registry.noted()
    found = [folder for folder in elsewhere if folder.name == name_or_path]
    if len(found) == 1:
        return found[0]
    if found:
        lines = "".join(f"\n  {folder}" for folder in found)
        raise RunFolderError(f"{name_or_path}: several runs have this name. Say which:{lines}")
    known = {path.parent.name for path in runs.glob("*/job.yaml")} | {f.name for f in elsewhere}
    hint = suggest(name_or_path, sorted(known)).removesuffix(".")
    raise RunFolderError(
        f"{name_or_path}: no run of this name in {runs} or elsewhere, and no run's folder by this "
        f"path.{hint}"
    )


def launched_in(run: Path) -> Path:
    """The folder that a run's relative paths start from; this one where that one is gone."""
    folder = Path(read_object(run / "state.json").get("launched_in") or ".")
    return folder if folder.is_dir() else Path()


def is_alive(folder: Path) -> bool:
    """Whether a process runs this run now. Raises RunFolderError where that cannot be known."""
    try:
        return is_locked(folder / "events.jsonl")
    except NoLocksError as error:
        raise _no_locks(folder, error) from None


def run_word(folder: Path) -> str:
    """What a command calls a run by: its name, or its path where `--runs` was said."""
    if folder.parent == Path("runs").absolute():
        return shlex.quote(folder.name)
    return shlex.quote(str(folder))


def resume_command(folder: Path) -> str:
    """The words that go on with a run."""
    return f"launch resume {run_word(folder)}"


def stop_command(folder: Path) -> str:
    """The words that end a run, and delete what it has left."""
    return f"launch stop {run_word(folder)}"


def _refuse_queued(folder: Path) -> None:
    """Raises RunFolderError where a job of Slurm's is to run it."""
    if found := queued(folder):
        raise RunFolderError(
            f"{folder}: this run is a job of Slurm's: {found}. Follow it (launch attach "
            f"{run_word(folder)}), or end it (launch stop {run_word(folder)})"
        )


def _lock(folder: Path, events: IO[str]) -> None:
    """Raises RunFolderError where another process has the run's lock.

    A requeued job waits for it: a file server drops the lock of a dead host after minutes.
    """
    timeout_s = REQUEUED_LOCK_TIMEOUT_S if INSIDE in os.environ else LOCK_TIMEOUT_S
    try:
        if not lock(events, timeout_s):
            raise RunFolderError(f"{folder}: this run is running now")
    except NoLocksError as error:
        raise _no_locks(folder, error) from None


def _no_locks(folder: Path, error: NoLocksError) -> RunFolderError:
    return RunFolderError(
        f"{folder}: its file system has no locks (flock: {error.strerror}), so that two processes "
        "could run one run. Name a folder on another one with --runs DIR, or mount this one with "
        "locks (Lustre: -o flock)"
    )


def _earlier(folder: Path, *, fresh: bool) -> Path | None:
    """What has the run's name already, and may be moved aside. Raises RunFolderError."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not fresh and not registry.is_run(folder):
        raise RunFolderError(
            f"{folder} exists and is no run's folder. Give this run another name (name=...), or "
            "move the folder aside (--fresh)"
        )
    if not fresh:
        raise RunFolderError(
            f"{folder}: there is a run of this name already. Go on with it "
            f"({resume_command(folder)}), give this one another name (name=...), or move the "
            "old one aside and start anew (--fresh)"
        )
    _refuse_queued(folder)
    if is_alive(folder):
        raise RunFolderError(
            f"{folder}: this run is running now. End it first, or say name=... for another one"
        )
    if left := next((name for name in LEFT if (folder / name).exists()), ""):
        raise RunFolderError(
            f"{folder}: this run may still have hosts elsewhere ({left} says which). End it first "
            f"(launch stop {run_word(folder)}), or say name=... for another one"
        )
    return folder


@contextmanager
def _complete(folder: Path, job: str) -> Iterator[Path]:
    """Gives a folder that gets the name of `folder` at the end, and is removed after an error.

    Raises RunFolderError where it cannot be made.
    """
    making = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    try:
        (making / "logs").mkdir(parents=True)
        replace_file(making / "job.yaml", job)
        yield making
        making.rename(folder)
    except OSError as error:
        shutil.rmtree(making, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise RunFolderError(f"{folder}: another command has made it just now") from None
        raise RunFolderError(
            f"{folder}: the run's folder cannot be made: {error.strerror}. "
            "Say --runs DIR for another place"
        ) from None
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
