"""The examples of a step with the highest loss, and the documents that they come from.

The letters of dims in array names are those of trainer/model/__init__.py.
"""

import math
from pathlib import Path

import jax
import numpy as np

from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.protocol.reports import DocumentLoss, ExampleLoss, StepExamples
from trainer.contract.records import exclusions
from trainer.contract.records.checkpoint_metadata import folder_of
from trainer.contract.records.compatibility import program_changes
from trainer.contract.storage.paths import to_path
from trainer.data import mixture, pipeline
from trainer.data.provenance import Provenance
from trainer.distributed import initialize
from trainer.tools.replay import (
    Replay,
    check_examples,
    check_origin,
    excluded_examples,
    newest_before,
    recorded_steps,
)

SHOWN_CHARACTERS = 80
"""Characters of a document's text."""


def explain(run_dir: Path, job: Job, step: int, top: int) -> StepExamples:
    """Returns the examples of a step with the highest loss.

    Raises ConfigError when the state before the step cannot be computed here, BrokenError when its
    checkpoint is damaged.
    """
    if job.dpo:
        raise ConfigError(["dpo: the loss of a pair is not a sum of the losses of its targets"])
    if job.distill:
        raise ConfigError(["distill: the loss of a target is not its cross-entropy alone"])
    folder = to_path(folder_of(job, run_dir))
    lines = recorded_steps(run_dir)
    listed = excluded_examples(folder)
    last = max([*lines, *(one.step for one in listed)], default=0)
    if step > last:
        raise ConfigError([f"step {step}: the run has recorded {last} steps"])
    recorded, about = lines.get(step), newest_before(folder, step)
    tokens = mixture.load(job.data)
    check_origin(job, about, tokens, step)
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
        check_examples(step, metrics, recorded)
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
