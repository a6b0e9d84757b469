"""Saves the state in the background: only the copy to host memory blocks the steps."""

import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from trainer.checkpoint import conditional
from trainer.checkpoint import folder_check as folders
from trainer.checkpoint.commit import temporary_path_class
from trainer.checkpoint.errors import SaveError, StaleError
from trainer.checkpoint.facts import Progress, RunFacts, array_facts
from trainer.checkpoint.lease import Lease
from trainer.checkpoint.save_progress import Writing
from trainer.checkpoint.tree import flatten
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.checkpoint_metadata import (
    ABOUT,
    TOKENIZER,
    CheckpointMetadata,
    Score,
)
from trainer.contract.storage import durable_files
from trainer.contract.storage.paths import is_url
from trainer.distributed import consensus
from trainer.step.train_state import TrainState
from trainer.telemetry.metrics import Report

LONGEST_SAVE_S = 24 * 3600
"""A stalled host raises after `deadlines.save_s`; a lost host ends the other processes."""
CHUNK_BYTES = 64 * 2**20
"""The unit in which an array is read: on another mesh, a host reads little beyond its shards."""
UNLISTED = "_CHECKPOINT_METADATA"
"""The file that Orbax changes after about.json is written."""


class Saver:
    """Runs one save at a time; a new one waits for the last. Every process must call it."""

    def __init__(self, folder: epath.Path, lease: Lease, run: RunFacts, report: Report) -> None:
        assert run.job.checkpoint
        self._folder, self._lease, self._run, self._report = folder, lease, run, report
        self._policy = run.job.checkpoint
        self._epoch = 0
        self._checkpointer = self._new_checkpointer()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Exception | None] | None = None
        self._about: CheckpointMetadata | None = None
        self._number = self._barriers = 0
        self._has_failed = False
        self._writing: Writing | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a save has begun whose result `poll` has not returned yet."""
        return self._pending is not None

    def save(self, progress: Progress, state: TrainState[jax.Array]) -> None:
        """Begins a save and returns when the arrays are copied to host memory.

        First waits for the previous save. Raises SaveError when that one failed and the job's
        `on_save_error` is `stop`, and StaleError when a newer attempt holds the folder.
        """
        self.poll(wait=True)
        began = time.perf_counter()
        flat = flatten(state)
        self._number, self._barriers = self._number + 1, 0
        data = self._label() if is_url(self._folder) else ""
        self._about = self._run.metadata(progress, array_facts(flat), data)
        error, writing = None, self._new_writing(progress.step, flat)
        try:
            how = {name: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES) for name in flat}
            arguments: Any = ocp.args.PyTreeSave(flat, how)  # type: ignore[call-arg]
            self._checkpointer.save(self._folder / str(progress.step), args=arguments)
        except Exception as problem:  # a store that is gone, or a host that did not take part
            error = problem
        blocked_s = time.perf_counter() - began
        self._pending = self._thread.submit(
            self._settle, self._about.step, writing, error, began, blocked_s
        )

    def poll(self, *, wait: bool = False) -> Exception | None:
        """Returns the error of a save that has ended; None when it has none or is in progress.

        Call it after every step; `wait` blocks until the save ends. Raises StaleError, and
        SaveError when the job's `on_save_error` is `stop`.
        """
        if self._pending is None or not (wait or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        error = pending.result(LONGEST_SAVE_S + 2 * consensus.SLACK_S)
        if isinstance(error, StaleError):
            raise error
        if error is not None:
            # The old checkpointer would raise parts of this failure again at the next save.
            self._checkpointer = self._new_checkpointer()
        if error is not None and self._policy.on_save_error == "stop":
            raise SaveError(f"the checkpoint could not be saved: {error}")
        return error

    def _new_checkpointer(self) -> ocp.AsyncCheckpointer:
        """Returns a checkpointer whose threads can commit nothing once the next one is created."""
        self._epoch = epoch = self._epoch + 1
        path_class = temporary_path_class(
            self._folder, self._label, partial(self._commit, epoch), self._after_commit
        )
        return _checkpointer(path_class, partial(self._at_barrier, epoch))

    def _label(self) -> str:
        """Returns a label that is unique to each save."""
        return f"{self._lease.label}-{self._number}"

    def _new_writing(self, step: int, flat: dict[str, jax.Array]) -> Writing:
        total = sum(leaf.size * leaf.dtype.itemsize for leaf in flat.values())
        limit_s = self._run.job.deadlines.save_s
        self._writing = Writing(limit_s, lambda written: self._report.saving(step, written, total))
        return self._writing

    def _settle(
        self,
        step: int,
        writing: Writing,
        error: Exception | None,
        began: float,
        blocked_s: float,
    ) -> Exception | None:
        """Ends a save, in a thread. Returns its error, which is the same on all processes."""
        try:
            self._end(writing, error)
        except Exception as verdict:
            self._report_failure(step, verdict)
            return verdict
        assert self._about
        seconds = time.perf_counter() - began
        self._report.saved(step, self._about.bytes, seconds, blocked_s)
        return None

    def _end(self, writing: Writing, error: Exception | None) -> None:
        """Waits until Orbax has ended. Raises the error on which all processes agree."""
        try:
            if error is None:
                writing.finish(self._checkpointer.wait_until_finished)
        except (consensus.AgreementError, StaleError):
            raise
        except Exception as problem:
            error = self._stale_instead_of(problem)
        if error is not None:
            self._agree(error)

    def _stale_instead_of(self, error: Exception) -> Exception:
        """Returns StaleError when a newer attempt, which removes these files, has taken over."""
        with contextlib.suppress(Exception):  # the folder may be gone, as `error` reports
            if jax.process_index() == 0 and self._lease.is_taken_over(self._folder):
                return StaleError(
                    f"a newer attempt has taken over from attempt {self._lease.attempt}"
                )
        return error

    def _report_failure(self, step: int, error: Exception) -> None:
        if jax.process_index() != 0 or isinstance(error, StaleError):
            return
        lines = str(error).strip().splitlines()
        self._report.save_failed(step, lines[0] if lines else repr(error))
        self._has_failed = True
        try:
            folders.remove_unfinished(self._folder, self._lease)
        except Exception:
            pass  # the folder is gone, as just reported, or another attempt has it by now

    def _at_barrier(self, epoch: int, *, key: str, timeout_ms: int) -> None:
        """Replaces Orbax's two barriers of a save: all have written; process 0 has committed."""
        del key
        assert self._writing
        self._check_given_up(epoch)
        with self._writing.waiting():
            self._agree(None, timeout_ms / 1000)

    def _agree(self, error: Exception | None, deadline_s: float = LONGEST_SAVE_S) -> None:
        name = f"save/{self._number}/{self._barriers}"
        self._barriers += 1
        consensus.agree(name, error, (StaleError,), deadline_s)

    def _check_given_up(self, epoch: int) -> None:
        assert self._writing
        if epoch != self._epoch or self._writing.is_given_up:
            raise SaveError("this save was abandoned")

    def _commit(self, epoch: int, written: epath.Path) -> None:
        """Commits the step, on process 0. Raises SaveError, StaleError."""
        assert self._about
        self._lease.check(self._folder)
        if self._run.tokenizer:
            (written / TOKENIZER).write_text(self._run.tokenizer, encoding="utf-8")
        files = {
            name: n for name, n in checkpoint_metadata.sizes(written).items() if name != UNLISTED
        }
        if is_url(written):
            files = {f"{self._about.data}/{name}": size for name, size in files.items()}
        self._about = self._about.model_copy(update={"files": files})
        text = self._about.model_dump_json(indent=1)
        if is_url(written):
            self._check_given_up(epoch)
            self._commit_object(written.parent / ABOUT, text)
            return
        (written / ABOUT).write_text(text, encoding="utf-8")
        durable_files.sync_all(Path(written))
        self._check_given_up(epoch)
        self._lease.check(self._folder)

    def _commit_object(self, about: epath.Path, text: str) -> None:
        """Writes about.json. Raises StaleError, and SaveError if the step is committed already."""
        self._lease.renew(self._folder)
        if not conditional.create(about, text):
            raise SaveError(f"{about} already exists: another attempt has committed this step")

    def _after_commit(self) -> None:
        """Deletes what the policy does not keep, on process 0. Raises StaleError."""
        self._lease.check(self._folder)
        try:
            if self._has_failed:  # its last writes may have arrived after their removal
                folders.remove_unfinished(self._folder, self._lease)
                self._has_failed = False
            scores = [
                Score(s, _eval_loss(self._folder / str(s)))
                for s in checkpoint_metadata.steps(self._folder)
            ]
            assert self._about
            checked_step = self._about.checked_step
            for step in checkpoint_metadata.expired(scores, self._policy, checked_step):
                folders.delete(self._folder / str(step))
        except Exception as error:  # the new checkpoint is saved, even if old ones remain
            self._report.warn(f"old checkpoints could not be deleted: {error}")


def _checkpointer(path_class: Any, barrier: Callable[..., None]) -> ocp.AsyncCheckpointer:
    """Returns a checkpointer without compression.

    Random-looking float32 shrinks little, and compression would take most of the time.
    """
    # Orbax logs one failure with nine tracebacks. It also raises it, and Slipway reports that.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    all_processes = ocp.options.MultiprocessingOptions(
        active_processes=set(range(jax.process_count()))
    )
    return ocp.AsyncCheckpointer(
        ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=all_processes),
        async_options=ocp.AsyncOptions(timeout_secs=LONGEST_SAVE_S, barrier_sync_fn=barrier),
        # With named processes, Orbax synchronizes through the coordinator, with deadlines, instead
        # of through a collective on the devices.
        multiprocessing_options=all_processes,
        temporary_path_class=path_class,
    )


def _eval_loss(folder: epath.Path) -> float | None:
    try:
        return checkpoint_metadata.read_about(folder).eval_loss
    except checkpoint_metadata.BrokenError:
        return None
