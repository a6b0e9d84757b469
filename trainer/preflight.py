"""Checks on one host before any process connects to another. Imports no jax."""

import os
import platform
from dataclasses import dataclass

from trainer.contract.config.job import Job
from trainer.contract.protocol import versions
from trainer.contract.protocol.events import CheckedEvent, ProgressEvent
from trainer.contract.records.compatibility import code_of
from trainer.data import eval_tasks, mixture
from trainer.data.eval_tasks import EvalTasks
from trainer.data.mixture import Mixture
from trainer.data.token_cache import Tokens
from trainer.telemetry.events import Events


def prepare_data(job: Job, events: Events) -> Tokens | Mixture:
    """Returns the job's tokens, tokenized now if not yet cached. Raises corpus.DataError."""

    waits_for = ""

    def progress(done: int, total: int, builder: str) -> None:
        nonlocal waits_for
        unit = f"bytes tokenized by {builder}" if builder else "bytes"
        events.emit(ProgressEvent(done=done, total=total, unit=unit))
        if builder and builder != waits_for:
            waits_for = builder
            print(f"waiting for {builder} to tokenize this corpus: {done / total:.0%} done")

    with events.phase("data"):
        tokens = mixture.load(job.data, progress)
        mixture.check(tokens, job.data)
    return tokens


@dataclass(frozen=True)
class Inputs:
    """What a process reads of its host before it connects to other processes."""

    tokens: Tokens | Mixture
    tasks: EvalTasks | None
    code: str
    """Hash of the code, see `code_of`."""


def read_inputs(job: Job, events: Events) -> Inputs:
    """Reads the job's data and tasks.

    Raises corpus.DataError when that is not possible, and ConfigError for a wrong task file.
    """
    tokens = prepare_data(job, events)
    return Inputs(tokens, eval_tasks.load(job, tokens.tokenizer), code_of(job))


def check(job: Job, events: Events) -> Inputs:
    """Sends a `checked` event with everything that must be equal on all hosts, and returns it.

    Raises what `read_inputs` raises.
    """
    inputs = read_inputs(job, events)
    checked = CheckedEvent(
        versions=versions.versions(),
        code=inputs.code,
        corpus_sha256=inputs.tokens.corpus_sha256,
        tokens=inputs.tokens.count,
        sequences=inputs.tokens.sequences(job.data.seq_len),
        host_name=platform.node(),
        machine=platform.machine(),
        cpus=os.cpu_count(),
    )
    events.emit(checked, last_word=True)
    return inputs
