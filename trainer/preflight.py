"""What one host can say before any process joins another: no jax is imported here."""

import os
import platform

from trainer import versions
from trainer.data import token_cache
from trainer.events import Events
from trainer.spec.job import Job


def prepare_data(job: Job, events: Events) -> token_cache.Tokens:
    """The job's tokens, made where they are not there yet. Raises corpus.DataError."""

    def progress(done: int, total: int) -> None:
        events.emit("progress", done=done, total=total, unit="bytes")

    with events.phase("data"):
        tokens = token_cache.load(job.data, progress)
        token_cache.check(tokens, job.data)
    return tokens


def check(job: Job, events: Events) -> None:
    """Sends `checked` with all that the hosts must agree on. Raises corpus.DataError."""
    tokens = prepare_data(job, events)
    events.emit(
        "checked",
        last_word=True,
        versions=versions.versions(),
        code=versions.code_sha256(),
        corpus_sha256=tokens.corpus_sha256,
        tokens=len(tokens.held_in),
        sequences=tokens.sequences(job.data.seq_len),
        host={"name": platform.node(), "machine": platform.machine(), "cpus": os.cpu_count()},
    )
