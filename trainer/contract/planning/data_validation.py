"""Rejects conflicting settings of the data: the tokenizer, paths, and how a job trains on it."""

from trainer.contract.config.data import Data
from trainer.contract.config.errors import Problems
from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.storage.chat_template import chat_template
from trainer.contract.storage.corpus import EXAMPLE
from trainer.contract.storage.tokenizer_info import VocabularyError, vocab_size, vocabulary


def data_problems(job: Job) -> Problems:
    """Yields conflicts of the data with the tokenizer, and with how the job trains on it."""
    yield from _vocabulary_problems(job)
    yield from _path_problems(job.data)
    yield from _chat_problems(job.data)
    yield from _preference_problems(job)
    yield from _distillation_problems(job)


def _vocabulary_problems(job: Job) -> Problems:
    try:
        tokens, size = vocabulary(job.data).size, vocab_size(job)
    except VocabularyError as error:
        yield f"data.{error.key}", str(error)
        return
    if size < tokens:
        yield "model.vocab_size", f"{size} is less than the tokenizer's {tokens} tokens"


def _path_problems(data: Data) -> Problems:
    for number, part in enumerate(data.parts):
        key = f"{_key_of(data, number)}.path"
        if part.source == "stdlib" and part.path is not None:
            yield key, "source 'stdlib' has no path. Remove this key, or set source: text"
        if part.source != "stdlib" and part.path is None:
            yield key, f"source '{part.source}' needs a path, such as {EXAMPLE}"
    if data.mixture is not None and data.path is not None:
        yield "data.path", "each source of a mixture has its own path. Remove this key"


def _chat_problems(data: Data) -> Problems:
    for number, part in enumerate(data.parts):
        if part.source != "chat":
            continue
        try:
            has_template = chat_template(part) is not None
        except VocabularyError as error:
            yield f"data.{error.key}", str(error)
            continue
        if not has_template and part.fields.prompt is None:
            yield (
                f"{_key_of(data, number)}.fields",
                "messages need a chat template, and the tokenizer has none (chat_template in the "
                "tokenizer_config.json beside it). Set the fields prompt and answer instead",
            )


def _preference_problems(job: Job) -> Problems:
    """Yields conflicts of pairs, and of the training on them, with the rest of the job."""
    for number, part in enumerate(job.data.parts):
        key = f"{_key_of(job.data, number)}.source"
        if job.dpo and part.source != "preference":
            yield key, f"dpo needs pairs, found '{part.source}'. Set source: preference"
        if part.source == "preference" and not job.dpo:
            yield key, "pairs are for the section dpo. Set it, for example to {beta: 0.1}"
    if not job.dpo:
        return
    if not job.lora:
        yield (
            "lora",
            "dpo needs adapters: its reference is the model without them. Set this section, for "
            "example to {rank: 16}",
        )
    if not job.data.mask_across_documents:
        yield (
            "data.mask_across_documents",
            "with dpo, a rejected completion must not attend to the chosen one. Remove this key",
        )
    if job.optimizer.z_loss:
        yield "optimizer.z_loss", "dpo has its own loss. Remove this key"
    if isinstance(job.model, Model) and job.model.dropout:
        yield (
            "model.dropout",
            "dpo compares the model with its reference, without noise. Remove this key",
        )


def _distillation_problems(job: Job) -> Problems:
    """Yields the sections that a distillation does not support."""
    if not job.distill:
        return
    for key in ("dpo", "lora", "integrity"):
        if getattr(job, key):
            yield key, "distill does not support this section. Remove one of them"
    if job.optimizer.z_loss:
        yield "optimizer.z_loss", "distill has its own loss. Remove this key"


def _key_of(data: Data, number: int) -> str:
    """Returns the job file's key of a part of the data."""
    return "data" if data.mixture is None else f"data.mixture.{number}"
