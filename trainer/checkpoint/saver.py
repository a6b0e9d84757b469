"""Saves the state without stopping the steps: what blocks is the copy off the devices."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from trainer import agreement, versions
from trainer.checkpoint import folder as folders
from trainer.checkpoint.commit import temporary_path_class
from trainer.checkpoint.digest import digests
from trainer.checkpoint.errors import SaveError, StaleError
from trainer.checkpoint.lease import Lease
from trainer.checkpoint.leaves import flatten
from trainer.report import Report
from trainer.spec import checkpoints
from trainer.spec.checkpoints import ABOUT, TOKENIZER, About, Array, Base, Score
from trainer.spec.job import Job
from trainer.spec.plan import Plan
from trainer.train_step import State

SAVE_TIMEOUT_S = 1200
"""For writing one checkpoint in the background."""
CHUNK_BYTES = 64 * 2**20
"""What of an array is read as one: a host of another mesh holds little that is not its own."""
UNLISTED = "_CHECKPOINT_METADATA"
"""Orbax changes it after about.json is written."""


@dataclass(frozen=True)
class Run:
    """What a checkpoint says of the run that made it."""

    job: Job
    plan: Plan
    corpus_sha256: str
    run_id: str
    attempt: int
    tokenizer: str = ""
    """The file of a tokenizer that was trained for it."""
    base: Base | None = None
    """What its adapters are beside."""


@dataclass(frozen=True)
class Progress:
    """Where a run is when it saves."""

    step: int
    examples: int
    loss: float
    eval_loss: float | None


class Saver:
    """One save at a time; the next one waits for the one before. Every process must call it."""

    def __init__(self, folder: epath.Path, lease: Lease, run: Run, report: Report) -> None:
        assert run.job.checkpoint
        self._folder, self._lease, self._run, self._report = folder, lease, run, report
        self._policy = run.job.checkpoint
        self._checkpointer = self._new_checkpointer()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending: Future[Exception | None] | None = None
        self._about: About | None = None
        self._number = self._barriers = 0
        self._has_failed = False

    def save(self, progress: Progress, state: State[jax.Array]) -> None:
        """Begin to save; returns when the arrays are copied. Raises SaveError, StaleError."""
        self.poll(wait=True)
        began = time.perf_counter()
        flat = flatten(state)
        self._about = self._about_of(progress, flat)
        self._number, self._barriers = self._number + 1, 0
        error = None
        try:
            how = {name: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES) for name in flat}
            arguments: Any = ocp.args.PyTreeSave(flat, how)  # type: ignore[call-arg]
            self._checkpointer.save(self._folder / str(progress.step), args=arguments)
        except Exception as problem:  # of a store that is gone, or a host that did not come
            error = problem
        blocked_s = time.perf_counter() - began
        self._pending = self._thread.submit(self._settle, self._about.step, error, began, blocked_s)

    def poll(self, *, wait: bool = False) -> Exception | None:
        """What became of the save under way, once it has ended: its error. Call it every step.

        `wait` for its end. Raises StaleError, and SaveError where the job says to stop then.
        """
        if self._pending is None or not (wait or self._pending.done()):
            return None
        pending, self._pending = self._pending, None
        error = pending.result(SAVE_TIMEOUT_S + 2 * agreement.SLACK_S)
        if isinstance(error, StaleError):
            raise error
        if error is not None:
            # Orbax's own would raise parts of this failure again at the next save.
            self._checkpointer = self._new_checkpointer()
        if error is not None and self._policy.on_save_error == "stop":
            raise SaveError(f"the checkpoint could not be saved: {error}")
        return error

    def _new_checkpointer(self) -> ocp.AsyncCheckpointer:
        path_class = temporary_path_class(self._folder, self._commit, self._after_commit)
        return _checkpointer(path_class, self._at_barrier)

    def _about_of(self, progress: Progress, flat: dict[str, jax.Array]) -> About:
        run, plan = self._run, self._run.plan
        return About(
            step=progress.step,
            examples=progress.examples,
            time=time.time(),
            run_id=run.run_id,
            attempt=run.attempt,
            loss=progress.loss,
            eval_loss=progress.eval_loss,
            job=run.job.model_dump(mode="json"),
            corpus_sha256=run.corpus_sha256,
            world=plan.world,
            mesh=plan.mesh,
            versions=versions.versions(),
            arrays=self._arrays(flat),
            files={},
            base=run.base,
        )

    def _arrays(self, flat: dict[str, jax.Array]) -> dict[str, Array]:
        numbers = digests(flat.values())
        return {
            name: Array(shape=leaf.shape, dtype=str(leaf.dtype), digest=number)
            for (name, leaf), number in zip(flat.items(), numbers, strict=True)
        }

    def _settle(
        self, step: int, error: Exception | None, began: float, blocked_s: float
    ) -> Exception | None:
        """In a thread: the end of a save; its error is the same on all processes."""
        try:
            self._end(error)
        except Exception as verdict:
            self._tell_failure(step, verdict)
            return verdict
        assert self._about
        seconds = time.perf_counter() - began
        self._report.saved(step, self._about.bytes, seconds, blocked_s)
        return None

    def _end(self, error: Exception | None) -> None:
        """Until Orbax has ended. Raises what all processes agree went wrong."""
        try:
            if error is None:
                self._checkpointer.wait_until_finished()
        except (agreement.AgreementError, StaleError):
            raise
        except Exception as problem:
            error = problem
        if error is not None:
            self._agree(error)

    def _tell_failure(self, step: int, error: Exception) -> None:
        if jax.process_index() != 0 or isinstance(error, StaleError):
            return
        lines = str(error).strip().splitlines()
        self._report.save_failed(step, lines[0] if lines else repr(error))
        self._has_failed = True
        try:
            self._lease.check(self._folder)
            folders.remove_unfinished(self._folder)
        except Exception:
            pass  # the place is gone, as was just told, or it is another attempt's by now

    def _at_barrier(self, *, key: str, timeout_ms: int) -> None:
        """Orbax's two meetings of a save: all have written; process 0 has committed."""
        del key
        self._agree(None, timeout_ms / 1000)

    def _agree(self, error: Exception | None, deadline_s: float = SAVE_TIMEOUT_S) -> None:
        name = f"save/{self._number}/{self._barriers}"
        self._barriers += 1
        agreement.agree(name, error, (StaleError,), deadline_s)

    def _commit(self, written: epath.Path) -> None:
        """On process 0. Raises StaleError."""
        assert self._about
        if self._run.tokenizer:
            (written / TOKENIZER).write_text(self._run.tokenizer, encoding="utf-8")
        files = checkpoints.sizes(written)
        files.pop(UNLISTED, None)
        self._about = self._about.model_copy(update={"files": files})
        self._lease.check(self._folder)
        (written / ABOUT).write_text(self._about.model_dump_json(indent=1))

    def _after_commit(self) -> None:
        """On process 0: what the policy does not keep goes."""
        try:
            if self._has_failed:  # its last writes may have come after it was removed
                folders.remove_unfinished(self._folder)
                self._has_failed = False
            scores = [
                Score(s, _eval_loss(self._folder / str(s))) for s in checkpoints.steps(self._folder)
            ]
            for step in checkpoints.expired(scores, self._policy):
                folders.delete(self._folder / str(step))
        except Exception as error:  # the checkpoint is saved, whatever becomes of older ones
            self._report.warn(f"old checkpoints could not be deleted: {error}")


def _checkpointer(path_class: Any, barrier: Callable[..., None]) -> ocp.AsyncCheckpointer:
    """Compression is off: random-looking float32 shrinks little, and it takes most of the time."""
    # Orbax logs one failure with nine tracebacks; it raises it too, and that is what we tell.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    everybody = ocp.options.MultiprocessingOptions(active_processes=set(range(jax.process_count())))
    return ocp.AsyncCheckpointer(
        ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=everybody),
        async_options=ocp.AsyncOptions(timeout_secs=SAVE_TIMEOUT_S, barrier_sync_fn=barrier),
        # Naming them makes Orbax meet through the coordinator, with deadlines, instead of through a
        # collective on the devices.
        multiprocessing_options=everybody,
        temporary_path_class=path_class,
    )


def _eval_loss(folder: epath.Path) -> float | None:
    try:
        return checkpoints.read_about(folder).eval_loss
    except checkpoints.BrokenError:
        return None
