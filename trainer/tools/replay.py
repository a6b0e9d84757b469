"""Computes steps of a run again on this machine: state, batch, and the loss of each target.

The letters of dims in array names are those of trainer/model/__init__.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
from etils import epath

from trainer.checkpoint.initial_state import at_step
from trainer.checkpoint.weights import initial
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.mesh import Mesh
from trainer.contract.planning.plan import Corpus
from trainer.contract.planning.planner import resolve
from trainer.contract.records import checkpoint_metadata, exclusions
from trainer.contract.records.checkpoint_metadata import (
    BrokenError,
    CheckpointMetadata,
)
from trainer.contract.records.compatibility import code_of
from trainer.contract.records.exclusions import Exclusion, Exclusions
from trainer.contract.records.metrics_file import Line, curve
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.mixture import Mixture
from trainer.data.packing import Batch
from trainer.data.token_cache import Tokens
from trainer.distributed import mesh
from trainer.distributed.stop_vote import StopRequest, StopVote
from trainer.model import custom
from trainer.run_plan import this_machine
from trainer.step.loss import losses_by_target
from trainer.step.spikes import RecentSteps
from trainer.step.train_state import StepMetrics, TrainState
from trainer.step.train_step import TrainProgram

MOST_FROM_START = 500
"""Last step that is computed again from the first one, when no checkpoint is before it."""


@dataclass(frozen=True)
class Replay:
    """A run's program on this machine, and its batches."""

    program: TrainProgram
    loader: BatchLoader
    compiled: jax.stages.Compiled
    about: CheckpointMetadata | None
    """The checkpoint to start from; None for step 0."""
    recent: RecentSteps
    lines: dict[int, Line]
    """Step -> what the run has recorded of it."""

    @classmethod
    def of(
        cls,
        job: Job,
        tokens: Tokens | Mixture,
        excluded: Sequence[Exclusion],
        about: CheckpointMetadata | None,
        lines: dict[int, Line],
    ) -> "Replay":
        """Compiles the step of a job for the devices of this machine."""
        job = job.model_copy(update={"mesh": Mesh(data=1), "profile": None})
        corpus = Corpus(source=job.data.source, sha256=None)
        plan = resolve(job, this_machine(), corpus, custom.parameters)
        program = TrainProgram.of(job, plan, mesh.build(plan))
        size = job.data.global_batch
        shift = about.examples - about.step * size if about else 0
        shardings = batch_shardings(program.mesh)
        loader = BatchLoader(job, plan.batch, tokens, shardings, shift, tuple(excluded))
        compiled = program.compiled_step(next(loader.training(1)))
        recent = RecentSteps(about.recent if about else ())
        return cls(program, loader, compiled, about, recent, lines)

    def batch(self, step: int) -> Batch:
        return next(self.loader.training(step))

    def state_before(self, folder: epath.Path, step: int) -> TrainState[jax.Array]:
        """Returns the state that a step starts from. Raises BrokenError, ConfigError."""
        first = self.about.step + 1 if self.about else 1
        state = self._restored(folder, self.about) if self.about else self._initial()
        batches = self.loader.training(first)
        for number in range(first, step):
            state, metrics = self.step(number, state, next(batches))
            if recorded := self.lines.get(number):
                check_examples(number, metrics, recorded)
        return state

    def step(
        self, number: int, state: TrainState[jax.Array], batch: Batch
    ) -> tuple[TrainState[jax.Array], StepMetrics]:
        """Returns the state after a step, and its metrics; drops what the run has dropped."""
        program, limits = self.program, self.program.no_limits
        if program.job.on_spike == "skip":
            own = np.array(self.recent.limits(number), np.float32)
            limits = program.on_all_devices(own)
        nothing = StopVote(program.mesh).array(StopRequest.NOTHING)
        state, metrics = self.compiled(program.schedule, state, batch, nothing, limits)
        metrics = jax.device_get(metrics)
        self.recent.add(number, float(metrics.loss), float(metrics.grad_norm))
        return state, metrics

    def losses(self, state: TrainState[jax.Array], batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Returns the weighted loss of each target of a batch, and its weight, (rows, S)."""
        bind = self.program.network.bind

        @partial(jax.jit, out_shardings=None)
        def by_target(weights: dict[str, jax.Array], micro: Batch) -> jax.Array:
            return losses_by_target(bind(weights), micro)

        # The step trains `params`; `weights` may have their moving mean instead.
        weights = {**(state.frozen_params or {}), **state.params}
        found = [
            np.asarray(by_target(weights, jax.tree.map(lambda x, n=number: x[n], batch)))
            for number in range(batch.tokens.shape[0])
        ]
        rows = np.asarray(batch.weights).reshape(-1, batch.weights.shape[-1])
        return np.concatenate(found), rows

    def _initial(self) -> TrainState[jax.Array]:
        policy = self.program.job.checkpoint
        if policy is None or policy.init_from is None:
            return self.program.initial_state()
        return self.program.fresh_state(initial(policy.init_from, self.program).params)

    def _restored(self, folder: epath.Path, about: CheckpointMetadata) -> TrainState[jax.Array]:
        return at_step(folder / str(about.step), self.program, about.corpus_sha256)[0]


def excluded_examples(folder: epath.Path) -> Exclusions:
    """Returns the examples that a run leaves out. Raises ConfigError for a bad file."""
    try:
        return exclusions.read(folder)
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def recorded_steps(run_dir: Path) -> dict[int, Line]:
    """Returns step -> its line in metrics.jsonl."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line["step"]: line for line in curve(lines) if "loss" in line}


def newest_before(folder: epath.Path, step: int) -> CheckpointMetadata | None:
    """Returns the newest checkpoint before a step; None for the start of the run.

    Raises ConfigError when none is near enough.
    """
    saved = checkpoint_metadata.steps(folder)
    for number in (one for one in saved if one < step):
        try:
            return checkpoint_metadata.read(folder / str(number))
        except BrokenError:
            continue
    if step <= MOST_FROM_START:
        return None
    oldest = f"the oldest one is of step {saved[-1]}" if saved else "there is none"
    raise ConfigError(
        [
            f"step {step} needs a whole checkpoint of step {step - 1} or before: {oldest} in "
            f"{folder}. Keep more of them with checkpoint.keep_every_steps"
        ]
    )


def check_origin(
    job: Job, about: CheckpointMetadata | None, tokens: Tokens | Mixture, step: int
) -> None:  # fmt: skip
    """Raises ConfigError for all that differs from the run of a checkpoint."""
    if about is None:
        return
    problems, code = [], code_of(job)
    if about.corpus_sha256 != tokens.corpus_sha256:
        problems.append(
            f"data: the corpus here has the hash {tokens.corpus_sha256[:12]}, that of step "
            f"{about.step} has {about.corpus_sha256[:12]}. The files that the run was trained on "
            "are missing, or have changed"
        )
    if about.code != code:
        problems.append(
            f"code: this is {code[:12]}, step {about.step} was computed by {about.code[:12]}. Step "
            f"{step} can be computed again only by the code that trained the run"
        )
    if problems:
        raise ConfigError(problems)


def check_examples(step: int, metrics: StepMetrics, recorded: Line) -> None:
    """Raises ConfigError when a step has other examples than the run had."""
    found, wanted = f"{int(metrics.examples):08x}", recorded.get("examples")
    if wanted not in (None, found):
        raise ConfigError(
            [
                f"step {step}: its examples have the digest {found} here, those of the run had "
                f"{wanted}. The job or the data has changed since then"
            ]
        )
