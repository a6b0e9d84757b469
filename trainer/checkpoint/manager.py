"""Sets up a run's checkpoints from its job: the folder and its lease, the restorer, the saver."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import jax
from etils import epath

from trainer.checkpoint import exclusion_file
from trainer.checkpoint import folder_check as folders
from trainer.checkpoint.auto_interval import AutoInterval
from trainer.checkpoint.damage import move_aside
from trainer.checkpoint.errors import StaleError
from trainer.checkpoint.facts import RunFacts
from trainer.checkpoint.initial_state import InitialState
from trainer.checkpoint.lease import Lease
from trainer.checkpoint.memory_client import HostMemory
from trainer.checkpoint.memory_restore import MemoryRestorer
from trainer.checkpoint.memory_saver import MemorySaver
from trainer.checkpoint.policy import NoSaving, Saving, Schedule, ScheduledSaving
from trainer.checkpoint.restore import Restorer
from trainer.checkpoint.saver import Saver
from trainer.checkpoint.tree import flatten
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.save_interval import SaveStatistics
from trainer.contract.protocol.host_memory import Address
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.checkpoint_metadata import UNCHECKED, folder_of
from trainer.contract.records.compatibility import code_of
from trainer.contract.records.exclusions import Exclusions
from trainer.contract.storage.paths import to_path
from trainer.data.loader import BatchLoader
from trainer.data.mixture import Mixture
from trainer.data.token_cache import Tokens
from trainer.distributed import consensus
from trainer.distributed.process_env import Environment
from trainer.distributed.stop_vote import StopSignal
from trainer.step.train_state import TrainState
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import Report


@dataclass(frozen=True)
class Checkpoints:
    """The folder of a run's checkpoints, taken by this attempt."""

    folder: epath.Path
    lease: Lease
    run: RunFacts
    memory: HostMemory | None = None
    """The memory of this host's agent."""
    recorded: Exclusions = ()
    """The examples that the run leaves out, by the file in the folder."""

    @classmethod
    def open(
        cls,
        job: Job,
        plan: Plan,
        tokens: Tokens | Mixture,
        run_dir: Path,
        environment: Environment,
        shapes: TrainState,
        report: Report,
    ) -> "Checkpoints | None":
        """Takes the folder, or returns None for a job without checkpoints and for a replay.

        Every process must call it. Raises ConfigError for a URL that this host cannot reach,
        FolderError when the folder cannot serve all hosts or a file in it cannot be read,
        StaleError when a newer attempt has it.
        """
        if job.checkpoint is None or plan.replay:
            return None
        folder = to_path(folder_of(job, run_dir))
        run_id = folders.run_id(run_dir)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in flatten(shapes).values())
        lease = folders.prepare(folder, run_id, environment.attempt, size, report.warn)
        run = RunFacts(
            job,
            plan,
            tokens.corpus_sha256,
            run_id,
            environment.attempt,
            code_of(job),
            tokens.trained,
        )
        memory = None
        if environment.host_memory:
            memory = HostMemory(Address.parse(environment.host_memory), environment.attempt)
        return cls(folder, lease, run, memory, exclusion_file.read_on_all(folder))

    def restorer(self, report: Report) -> Restorer:
        run, memory = self.run, None
        if self._has_memory and run.attempt > 1:
            limit_s = run.job.deadlines.restore_s
            memory = MemoryRestorer(self.memory, run.attempt, limit_s, report.warn)
        return Restorer(self.folder, run.job, run.corpus_sha256, report, memory)

    def memory_saver(self, start: InitialState, events: Events) -> MemorySaver | None:
        """Returns what saves the state in memory; None when the job does not want it.

        Every process must call it.
        """
        if not self._has_memory:
            return None
        return MemorySaver(self.memory, self._facts(start), start.stamp, events)

    def _facts(self, start: InitialState) -> RunFacts:
        return replace(
            self.run, base=start.base, teacher=start.teacher, excluded=self.excluded(start)
        )

    def excluded(self, start: InitialState) -> Exclusions:
        """Returns the examples that the run leaves out; the file is missing in a copied folder."""
        return max(self.recorded, start.excluded, key=len)

    def exclude(self, excluded: Exclusions) -> None:
        """Replaces the list of examples that the run leaves out from its next attempt on.

        Every process must call it. Raises StaleError.
        """
        self._change_folder(
            "excluded/written",
            lambda: exclusion_file.write(self.folder, excluded, self.lease.label),
        )

    def discard_after(self, step: int, report: Report) -> None:
        """Moves the checkpoints after a step aside: a host may have computed them wrong.

        Every process must call it. Raises StaleError.
        """

        def move() -> None:
            saved = checkpoint_metadata.steps(self.folder)
            later = [one for one in saved if one > step]
            for one in later:
                why = f"a host computed wrong at some time after step {step}"
                move_aside(self.folder / str(one), UNCHECKED, why)
            if later:
                report.discarded(later, next((one for one in saved if one <= step), None))

        self._change_folder("unchecked/moved", move)

    def _change_folder(self, name: str, change: Callable[[], None]) -> None:
        """Lets process 0 change the folder while its attempt is the newest one; all wait for it."""
        error = None
        if jax.process_index() == 0:
            try:
                self.lease.renew(self.folder)
                change()
            except Exception as problem:
                error = problem
        consensus.agree(name, error, (StaleError,))

    @property
    def _has_memory(self) -> bool:
        policy = self.run.job.checkpoint
        return policy is not None and policy.in_memory_every_steps is not None

    def saving(
        self, loader: BatchLoader, start: InitialState, stop: StopSignal, report: Report
    ) -> Saving:
        """Returns a Saving with the job's schedule; SIGTERM requests a save and the run's end."""
        job = self.run.job
        assert job.checkpoint
        first = jax.process_index() == 0
        auto = self._auto_interval(start, report) if first else None
        schedule = Schedule(job.checkpoint, job.last_step, stop, keeps_time=first, auto=auto)
        saver = Saver(self.folder, self.lease, self._facts(start), report)
        return ScheduledSaving(schedule, saver, loader, start, auto)

    def _auto_interval(self, start: InitialState, report: Report) -> AutoInterval | None:
        """Returns what chooses the interval; None when the job names one."""
        policy = self.run.job.checkpoint
        if policy is None or policy.every_minutes != "auto":
            return None
        known = self.run.plan.save_statistics or SaveStatistics()
        if start.stamp is not None and known.follows_fault:
            # Memory, and not storage, has served the last fault.
            known = known.model_copy(update={"faults": known.faults - 1})
        hosts = self.run.plan.world.hosts
        return AutoInterval(known, hosts, time.monotonic(), report.save_interval)


def saving_of(
    checkpoints: Checkpoints | None,
    loader: BatchLoader,
    start: InitialState,
    stop: StopSignal,
    report: Report,
) -> Saving:
    """Returns the Saving of a run that begins with `start`."""
    return checkpoints.saving(loader, start, stop, report) if checkpoints else NoSaving()
