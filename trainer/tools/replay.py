"""Computes a step of a run again: its state before the step, its batch, the loss of each target.

The letters of dims in array names are those of trainer/model/__init__.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
from etils import epath

from trainer.checkpoint.restore import read_arrays
from trainer.checkpoint.tree import changed, flatten, unflatten
from trainer.checkpoint.weights import initial
from trainer.contract.config.job import Job, Mesh
from trainer.contract.config.loader import ConfigError
from trainer.contract.planning.plan import Corpus
from trainer.contract.planning.planner import resolve
from trainer.contract.protocol.reports import DocumentLoss, ExampleLoss, StepExamples
from trainer.contract.records import checkpoint_metadata, exclusions
from trainer.contract.records.checkpoint_metadata import (
    BrokenError,
    CheckpointMetadata,
    folder_of,
)
from trainer.contract.records.compatibility import code_of, program_changes
from trainer.contract.records.exclusions import Exclusion, Exclusions
from trainer.contract.records.metrics_file import Line, curve
from trainer.contract.storage.paths import to_path
from trainer.data import mixture, pipeline
from trainer.data.loader import BatchLoader, batch_shardings
from trainer.data.mixture import Mixture
from trainer.data.packing import Batch
from trainer.data.provenance import Provenance
from trainer.data.token_cache import Tokens
from trainer.distributed import initialize, mesh
from trainer.distributed.stop_vote import StopRequest, StopVote
from trainer.model import custom
from trainer.run_plan import this_machine
from trainer.step.loss import losses_by_target
from trainer.step.spikes import RecentSteps
from trainer.step.train_step import StepMetrics, TrainProgram, TrainState

MOST_FROM_START = 500
"""Last step that is computed again from the first one, when no checkpoint is before it."""
SHOWN_CHARACTERS = 80
"""Characters of a document's text."""


def explain(run_dir: Path, job: Job, step: int, top: int) -> StepExamples:
    """Returns the examples of a step with the highest loss.

    Raises ConfigError when the state before the step cannot be computed here, BrokenError when its
    checkpoint is damaged.
    """
    folder = to_path(folder_of(job, run_dir))
    lines = _recorded(run_dir)
    listed = _excluded(folder)
    last = max([*lines, *(one.step for one in listed)], default=0)
    if step > last:
        raise ConfigError([f"step {step}: the run has recorded {last} steps"])
    recorded, about = lines.get(step), _newest_before(folder, step)
    tokens = mixture.load(job.data)
    _check(job, about, tokens, step)
    order = pipeline.order_hash(tokens, job.data, job.seed)
    excluded = exclusions.applicable(listed, order)
    # The examples of a step that was rewound are those that it had at first.
    bad = [number for number, one in enumerate(excluded) if one.step == step]
    initialize.configure()
    replay = Replay.of(job, tokens, excluded[: bad[-1]] if bad else excluded, about, lines)
    with jax.set_mesh(replay.program.mesh):
        state = replay.state_before(folder, step)
        batch = replay.batch(step)
        losses_BS, weights_BS = replay.losses(state, batch)
        _, metrics = replay.step(step, state, batch)
    if recorded and not bad:
        _check_examples(step, metrics, recorded)
    numbers = np.asarray(batch.examples).reshape(-1)
    means = [_mean(loss, weight) for loss, weight in zip(losses_BS, weights_BS, strict=True)]
    rows = sorted(range(len(numbers)), key=lambda row: _rank(means[row]))[:top]
    provenance = Provenance(tokens, job.data)
    return StepExamples(
        step=step,
        from_step=about.step if about else 0,
        loss=_finite(float(metrics.loss)),
        recorded_loss=recorded["loss"] if recorded and not bad else None,
        grad_norm=_finite(float(metrics.grad_norm)),
        is_excluded=bool(bad),
        count=len(numbers),
        notes=program_changes(about, job) if about else [],
        examples=[
            _example(provenance, int(numbers[row]), losses_BS[row], weights_BS[row]) for row in rows
        ],
    )


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
        state = self._restored(folder) if self.about else self._initial()
        batches = self.loader.training(first)
        for number in range(first, step):
            state, metrics = self.step(number, state, next(batches))
            if recorded := self.lines.get(number):
                _check_examples(number, metrics, recorded)
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
        state, metrics = self.compiled(program.peak_rate, state, batch, nothing, limits)
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

    def _restored(self, folder: epath.Path) -> TrainState[jax.Array]:
        about, program = self.about, self.program
        assert about
        like, shardings = flatten(program.shapes), flatten(program.shardings)
        flat = read_arrays(folder / str(about.step), about, like, shardings)
        if problem := changed(flat, about):
            raise BrokenError(f"the checkpoint of step {about.step} is damaged: {problem}")
        state = unflatten(program.shapes, flat)
        if about.base is None:
            return state
        return state._replace(frozen_params=initial(about.base.source, program, about.base).params)


def _excluded(folder: epath.Path) -> Exclusions:
    try:
        return exclusions.read(folder)
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def _recorded(run_dir: Path) -> dict[int, Line]:
    """Returns step -> its line in metrics.jsonl."""
    path = run_dir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line["step"]: line for line in curve(lines) if "loss" in line}


def _newest_before(folder: epath.Path, step: int) -> CheckpointMetadata | None:
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


def _check(
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


def _check_examples(step: int, metrics: StepMetrics, recorded: Line) -> None:
    """Raises ConfigError when a step has other examples than the run had."""
    found, wanted = f"{int(metrics.examples):08x}", recorded.get("examples")
    if wanted not in (None, found):
        raise ConfigError(
            [
                f"step {step}: its examples have the digest {found} here, those of the run had "
                f"{wanted}. The job or the data has changed since then"
            ]
        )


def _example(
    provenance: Provenance, number: int, losses_S: np.ndarray, weights_S: np.ndarray
) -> ExampleLoss:
    documents = [
        DocumentLoss(
            source=part.source,
            document=part.document,
            file=part.file,
            line=part.line,
            first_token=part.first,
            tokens=part.stop - part.start,
            loss=_finite(
                _mean(losses_S[part.start : part.stop], weights_S[part.start : part.stop])
            ),
            text=provenance.text(number, part)[:SHOWN_CHARACTERS],
        )
        for part in provenance.parts(number)
    ]
    return ExampleLoss(number, _finite(_mean(losses_S, weights_S)), documents)


def _mean(losses_S: np.ndarray, weights_S: np.ndarray) -> float:
    """Returns the mean loss of some targets; -inf when they have no weight."""
    total = float(weights_S.sum())
    return float(losses_S.sum()) / total if total else -math.inf


def _rank(loss: float) -> float:
    """Returns a key that orders losses: NaN first, then the highest."""
    return -math.inf if math.isnan(loss) else -loss


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
