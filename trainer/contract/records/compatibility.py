"""Changes of a resumed run since its checkpoint: errors that prevent resuming, and notes.

The launcher compares before any process starts, and the trainer again before it restores.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.contract.config import yaml
from trainer.contract.config.data import BYTES, TrainTokenizer
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import CustomModel
from trainer.contract.protocol import versions
from trainer.contract.records.checkpoint_metadata import TOKENIZER, CheckpointMetadata
from trainer.contract.storage.paths import AnyPath
from trainer.contract.storage.tokenizer_info import OF_BYTES, vocabulary

MODEL_KEYS = frozenset(
    f"model.{key}"
    for key in (
        "layers", "d_model", "heads", "kv_heads", "head_dim", "d_ff", "vocab_size",
        "rope_theta", "norm_eps", "tied_embeddings", "positions", "max_positions", "norm",
        "global_every", "local_rope_theta", "attention_sinks", "query_scale_dim", "norm_position",
        "qk_norm", "biases", "attn_logit_softcap", "mlp", "moe",
        "moe.count", "moe.top_k", "moe.normalize_weights", "moe.scores", "moe.weight_scale",
        "moe.groups", "moe.top_groups", "moe.shared", "moe.dense_layers", "moe.dense_d_ff",
        "latent_attention", "latent_attention.rank", "latent_attention.query_rank",
        "latent_attention.plain_dim", "latent_attention.rotary_dim", "latent_attention.value_dim",
        "scale_embeddings", "final_logit_softcap",
    )
) | {"model", "data.tokenizer", "data.tokenizer.train", "data.eos_token"}  # fmt: skip
"""Keys that set a parameter's shape or meaning: with another value the checkpoint is unusable."""
DATA_KEYS = frozenset(
    f"data.{key}"
    for key in (
        "source",
        "path",
        "mixture",
        "text_field",
        "fields.messages",
        "fields.prompt",
        "fields.answer",
        "dtype",
        "seq_len",
        "global_batch",
        "validation_fraction",
        "mask_across_documents",
    )
) | {"seed"}
"""Keys that set the examples of a step: with another value some are seen twice, others never."""
SILENT = (
    "mesh", "name", "sample", "log_every", "tensorboard", "wandb", "retries", "deadlines",
    "profile", "model.preset", "stop_after_step", "checkpoint.on_data_change",
)  # fmt: skip
"""Keys that change nothing in the loss curve."""
PARAMS = "params."
"""Prefix of the names of trained parameters in a checkpoint."""
OPTIMIZER_KEYS = frozenset({"optimizer.name", "optimizer.moments_dtype"})
EMA_KEY, BIAS_KEY = "optimizer.ema_decay", "model.moe.bias_update_rate"
ADAPTER_KEYS = frozenset({"lora", "lora.rank", "lora.alpha", "lora.targets"})
SHOWN_OF_HASH = 12
"""Characters of a hash that are printed."""
INIT = "a new run can start from its weights (checkpoint.init_from)"
ALLOW = "set checkpoint.on_data_change=continue to resume with the new data"


@dataclass(frozen=True)
class Continuity:
    """Result of a comparison; without errors, the run can resume from the checkpoint."""

    errors: list[str]
    notes: list[str]


def compare(about: CheckpointMetadata, job: Job, corpus_sha256: str | None) -> Continuity:
    """Returns the differences between a checkpoint and the job that would resume from it.

    `corpus_sha256` is None when only the hosts can read the data.
    """
    errors, notes = [], []
    is_allowed = job.checkpoint is not None and job.checkpoint.on_data_change == "continue"
    for key, saved, now in _changes(about, job, corpus_sha256):
        change = f"{key}: {yaml.dump_inline(saved)} -> {yaml.dump_inline(now)}"
        if key == "corpus" and isinstance(job.data.tokenizer, TrainTokenizer):
            errors.append(
                f"{change}: the tokenizer of step {about.step} was trained on other data, or by "
                f"another version of `tokenizers`; its checkpoint contains it as {TOKENIZER}"
            )
        elif key in MODEL_KEYS or (key == BIAS_KEY and None in (saved, now)):
            errors.append(f"{change}: the weights of step {about.step} belong to another model")
        elif key in OPTIMIZER_KEYS:
            errors.append(
                f"{change}: the moments of step {about.step} belong to another optimizer; {INIT}"
            )
        elif key in ADAPTER_KEYS:
            errors.append(
                f"{change}: step {about.step} does not have these adapters; start a new run"
            )
        elif key == EMA_KEY and saved is None:
            errors.append(f"{change}: step {about.step} has no average of the weights; {INIT}")
        elif (key in DATA_KEYS or key == "corpus") and not is_allowed:
            errors.append(f"{change}: step {about.step} was trained on other data; {ALLOW}")
        elif not _is_silent(key):
            notes.append(change)
    return Continuity(errors, notes)


def program_changes(about: CheckpointMetadata, job: Job) -> list[str]:
    """Returns the packages and the code of this process that differ from those of the save.

    Losses need not be equal to the last bit then. Call it where the job is computed: the launcher's
    machine may have other packages than the hosts.
    """
    now = {**versions.versions(), "code": code_of(job)[:SHOWN_OF_HASH]}
    saved = {**about.versions, "code": about.code[:SHOWN_OF_HASH]}
    return [
        f"{name}: {saved.get(name, 'none')} -> {now.get(name, 'none')}"
        for name in {**saved, **now}
        if saved.get(name) != now.get(name)
    ]


def code_of(job: Job) -> str:
    """Returns the SHA-256 over all code that computes the job."""
    own = job.model.module if isinstance(job.model, CustomModel) else ""
    return versions.code_sha256(own.partition(":")[0])


def of_its_tokenizer(folder: AnyPath, about: CheckpointMetadata, job: Job) -> CheckpointMetadata:
    """Returns `about` with the job's tokenizer if the tokenizer of `folder` was trained.

    Raises ConfigError when the two differ: a tokenizer that is trained now may be another one.
    """
    file = folder / about.data / TOKENIZER
    if not file.exists():
        return about
    if hashlib.sha256(file.read_bytes()).hexdigest() != vocabulary(job.data).sha256:
        raise ConfigError(
            [f"the weights have their own trained tokenizer. Set data.tokenizer to {file}"]
        )
    data = {**about.job["data"], "tokenizer": job.data.tokenizer}
    return about.model_copy(update={"job": {**about.job, "data": data}})


def other_parameters(
    about: CheckpointMetadata, shapes: Mapping[str, tuple[int, ...]], prefix: str
) -> list[str]:
    """Returns errors where a checkpoint's parameters, named PREFIX NAME, differ from `shapes`.

    For a custom model, no other check detects a different model.
    """
    saved = {
        name.removeprefix(prefix): array.shape
        for name, array in about.arrays.items()
        if name.startswith(prefix)
    }
    return [
        f"model.module: {name}: {saved.get(name, 'none')} -> {shapes.get(name, 'none')}: the "
        f"weights of step {about.step} belong to another model"
        for name in {**saved, **shapes}
        if saved.get(name) != shapes.get(name)
    ]


def _changes(
    about: CheckpointMetadata, job: Job, corpus_sha256: str | None
) -> Iterator[tuple[str, Any, Any]]:
    saved, now = (one["model"].get("module") for one in (about.job, job.model_dump()))
    if (saved is None) != (now is None):
        yield "model", saved or "the decoder", now or "the decoder"
    yield from _differences(_effective(about.job), _effective(job.model_dump(mode="json")))
    if corpus_sha256 not in (None, about.corpus_sha256):
        yield "corpus", about.corpus_sha256[:12], corpus_sha256[:12]


def _effective(job: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a job with its vocabulary size."""
    model = dict(job["model"])
    if model.get("vocab_size") is None and job["data"]["tokenizer"] == BYTES:
        model["vocab_size"] = OF_BYTES.size
    return {**job, "model": model}


def _differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], above: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (key, saved, now) for keys of both jobs; a key of only one version changes nothing."""
    for name in now:
        if name not in saved or saved[name] == now[name]:
            continue
        key = above + name
        if isinstance(saved[name], Mapping) and isinstance(now[name], Mapping):
            yield from _differences(saved[name], now[name], f"{key}.")
        else:
            yield key, saved[name], now[name]


def _is_silent(key: str) -> bool:
    return any(key == silent or key.startswith(f"{silent}.") for silent in SILENT)
