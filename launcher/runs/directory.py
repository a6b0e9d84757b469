"""The run directory and its files. See docs/reference/run-directory.md."""

import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from launcher.cluster.prices import chips, price_per_chip_hour
from launcher.cluster.schema import ClusterRef
from launcher.core.events import (
    AttemptEndedEvent,
    AttemptStartedEvent,
    CommandStartedEvent,
    LastHeardEvent,
    StateEvent,
)
from launcher.core.files import (
    LOCK_TIMEOUT_S,
    NoLocksError,
    end_torn_line,
    free_name,
    lock,
    replace_file,
)
from launcher.core.results import AttemptResult
from launcher.core.states import RunState
from launcher.host.process_tree import start_time
from launcher.planning import job_secrets
from launcher.planning.spec import LaunchSpec
from launcher.runs import live, registry, storage, summary
from launcher.runs.folder import RunFolderError, launched_in, no_locks, refuse_queued
from launcher.runs.new_folder import complete_folder, earlier_folder
from launcher.runs.phases import is_kept
from launcher.runs.save_account import SaveAccount
from launcher.runs.state_file import Position, RecordedState
from launcher.runs.usage import UsageAccount
from trainer.contract.config.loader import dump
from trainer.contract.planning.plan import BasePlan, Plan
from trainer.contract.protocol.environment import RUN_ID, SLURM_JOB
from trainer.contract.protocol.events import Event
from trainer.contract.protocol.wire import encode
from trainer.contract.storage import kept_programs

REQUEUED_LOCK_TIMEOUT_S = 300.0


class RunDir:
    """One run's folder. Creates it, and all files in it that the trainer does not write.

    The lock on events.jsonl means that the run is alive. However this process ends, the lock is
    released.
    """

    def __init__(self, folder: Path) -> None:
        refuse_queued(folder)
        self.folder = folder
        self._attempt = RecordedState()
        self._last_change: StateEvent | None = None
        self._observers: list[Callable[[Event], None]] = []
        self._saves: SaveAccount | None = None
        """Saves and faults so far; None unless an attempt needs them."""
        self._held: list[Event] = []
        """Events that are written before the next one, so that a refused command leaves none."""
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
        """Creates the folder with the resolved job and the first plan.

        With `fresh`, an earlier run of the same name is moved aside. Raises RunFolderError when
        there is one without `fresh`, when it is running, and when the folder cannot be created.
        """
        run = cls.make(launch, fresh=fresh)
        run.begin(launch)
        return run

    @classmethod
    def make(cls, launch: LaunchSpec, *, fresh: bool) -> "RunDir":
        """Creates the folder of a run that begins later. Raises RunFolderError, see `create`.

        The folder is complete and locked before it gets its name.
        """
        folder = launch.run_dir
        earlier = earlier_folder(folder, fresh=fresh)
        try:
            storage.refuse_others(launch, earlier)
            with complete_folder(folder, dump(launch.job)) as making:
                run_id = os.environ.get(RUN_ID) or uuid.uuid4().hex
                replace_file(making / "run_id", run_id + "\n")
                kept = kept_programs.store_of(folder)
                if launch.hot and kept.is_dir():
                    shutil.copytree(kept, making / kept_programs.IN_RUN)
                run = cls(making)
                if earlier:
                    storage.move_aside(launch, earlier)
                    earlier.rename(free_name(earlier))
        except storage.CheckpointFolderError as error:
            raise RunFolderError(str(error)) from None
        run.folder = folder
        return run

    @classmethod
    def open(cls, folder: Path) -> "RunDir":
        """Opens an earlier run to resume it. Raises RunFolderError when it is running.

        Raises RunRecordError when state.json has a wrong field.

        A `command_started` event marks the time from which the run's time counts again. It is
        written with the first other event.
        """
        run = cls._open(folder)
        for name in ("events.jsonl", "metrics.jsonl", "samples.jsonl"):
            end_torn_line(folder / name)
        if heard := live.read(folder).heard:
            run._held.append(LastHeardEvent(time=heard))
        run._attempt = run.recorded.of_attempt
        run._held.append(CommandStartedEvent(time=time.time()))
        return run

    @classmethod
    def _open(cls, folder: Path) -> "RunDir":
        try:
            return cls(folder)
        except PermissionError as error:
            raise RunFolderError(
                f"{error.filename} cannot be written: {error.strerror}. Resume the run as a user "
                "with write permission"
            ) from None

    def begin(self, launch: LaunchSpec) -> None:
        """Records an attempt: the current job, its plan, and its cluster.

        The plan gets what the run knows about its saves and faults.
        """
        plans = self.folder / "plans"
        plans.mkdir(exist_ok=True)
        plan = self._informed(launch.plan)
        replace_file(plans / f"{launch.attempt:04d}.json", plan.model_dump_json(indent=2))
        self._keep(launch)
        world = launch.provisioned_world
        self.add_event(
            AttemptStartedEvent(
                time=time.time(),
                attempt=launch.attempt,
                hosts=world.hosts,
                chips=chips(world),
                price_per_chip_hour=price_per_chip_hour(launch.cluster),
            )
        )
        self.set_state(RunState.PROVISIONING)

    def write_smaller_plans(self, plans: Iterable[BasePlan]) -> None:
        """Replaces the plans of the worlds that the run may shrink to; trainers compile for them.

        Plans of a `command` are left out.
        """
        folder = self.folder / "plans"
        folder.mkdir(exist_ok=True)
        for path in folder.glob("smaller-*.json"):
            path.unlink()
        for plan in plans:
            if isinstance(plan, Plan):
                path = folder / f"smaller-{plan.world.hosts:04d}.json"
                replace_file(path, plan.model_dump_json(indent=2))

    def _informed(self, plan: BasePlan) -> BasePlan:
        """Returns the plan with the saves and faults so far, if the trainer needs them."""
        if not isinstance(plan, Plan) or plan.save_statistics is None:
            return plan
        if self._saves is None:
            self._saves = summary.read(self.folder).saves
            self.observe(self._saves.add)
        known = self._saves.statistics(plan.save_statistics)
        return plan.model_copy(update={"save_statistics": known})

    def wait_in_queue(self, launch: LaunchSpec) -> None:
        """Records the job of an attempt that begins later."""
        self._keep(launch)
        self.set_state(RunState.QUEUED, self.recorded.position)

    def _keep(self, launch: LaunchSpec) -> None:
        if not launch.hot:
            shutil.rmtree(self.folder / kept_programs.IN_RUN, ignore_errors=True)
        replace_file(self.folder / "job.yaml", dump(launch.job))
        (self.folder / "logs").mkdir(exist_ok=True)
        registry.register(self.folder, job_secrets.names_in_file(launch.job))
        self._attempt = RecordedState(
            attempt=launch.attempt,
            cluster=launch.cluster_ref,
            hosts=launch.plan.world.hosts,
            steps=launch.steps,
            grace_s=launch.grace_s,
            launched_in=str(Path.cwd()),
        )

    @property
    def last_attempt(self) -> int:
        """Number of the last attempt with a recorded plan; 0 when there is none."""
        plans = (self.folder / "plans").glob("*.json")
        return max((int(path.stem) for path in plans if path.stem.isdecimal()), default=0)

    @property
    def recorded(self) -> RecordedState:
        """The state in state.json, see `RecordedState.read`."""
        return RecordedState.read(self.folder)

    @property
    def cluster_ref(self) -> ClusterRef:
        """Cluster reference of the last attempt's command."""
        return self.recorded.cluster or ClusterRef()

    @property
    def launched_in(self) -> Path:
        """Folder that the run's relative paths start from, see the function `launched_in`."""
        return launched_in(self.folder)

    def add_event(self, event: Event) -> None:
        """Appends an event to events.jsonl immediately if a run keeps it; see `is_kept`.

        Hosts' events get `received`, this machine's time: their own `time` is from host clocks,
        which may be wrong.
        """
        received = time.time()
        if event.process is not None:
            self._live.on_event(event, received)
            event = event.stamped(received=received)
        if is_kept(event):
            with self._writing:
                held, self._held = self._held, []
                for each in (*held, event):
                    self._write(each)

    def _write(self, event: Event) -> None:
        self._live.on_written(self._events.write(encode(event) + "\n"))
        self._events.flush()
        for observer in self._observers:
            observer(event)

    def usage(self) -> UsageAccount:
        """Returns what the run has used of its hosts until now."""
        return summary.read(self.folder).usage

    def observe(self, observer: Callable[[Event], None]) -> None:
        """Passes all events that are written from now on to a function, which must return soon.

        It must not write events itself.
        """
        self._observers.append(observer)

    def set_state(
        self, state: RunState, position: Position | None = None, *, reason: str = ""
    ) -> None:
        """Replaces state.json, and appends a `state` event when the state or its reason changes.

        `reason` explains why the run is in this state.
        """
        now, pid, position = time.time(), os.getpid(), position or Position()
        replace(
            self._attempt,
            state=state,
            reason=reason or None,
            time=now,
            pid=pid,
            start_time=start_time(pid),
            step=position.step,
            checkpoint=position.checkpoint,
        ).write(self.folder)
        change = StateEvent(attempt=self._attempt.attempt, state=state, reason=reason or None)
        if change != self._last_change:
            self._last_change = change
            self.add_event(change.stamped(time=now))

    def end_attempt(self, ending: AttemptResult) -> None:
        """Records how an attempt ended, for `launch status` and for the goodput."""
        self.add_event(
            AttemptEndedEvent(
                time=time.time(),
                process=ending.process,
                attempt=self._attempt.attempt,
                end_reason=ending.end_reason,
                reason=ending.reason,
                step=ending.step,
            )
        )

    def close(self) -> None:
        self._live.close()
        with suppress(OSError):  # a full disk was reported by the write itself
            self._events.close()

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lock(folder: Path, events: IO[str]) -> None:
    """Takes the run's lock. Raises RunFolderError when another process holds it.

    A requeued job waits longer: a file server drops the lock of a dead host only after minutes.
    """
    timeout_s = REQUEUED_LOCK_TIMEOUT_S if SLURM_JOB in os.environ else LOCK_TIMEOUT_S
    try:
        if not lock(events, timeout_s):
            raise RunFolderError(f"{folder}: this run is running now")
    except NoLocksError as error:
        raise no_locks(folder, error) from None
