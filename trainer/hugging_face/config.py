"""config.json: made from a job, and checked against one."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.spec.config import ConfigError
from trainer.spec.explain import found
from trainer.spec.job import Job
from trainer.spec.resolve import vocab_size
from trainer.spec.vocabulary import vocabulary

CONFIG = "config.json"

_JOB_KEYS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tied_embeddings",
}
"""Key of config.json -> key of the job's model."""

# The only kind that this trainer has, and what a Llama is where its file does not say.
_FIXED = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_type": "default",
}
_DEFAULTS = {"rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **_FIXED}


def make(job: Job, dtype: str) -> dict[str, Any]:
    """The config of a job's model, with weights stored in `dtype`."""
    fixed = {key: value for key, value in _FIXED.items() if key != "rope_type"}
    separator = vocabulary(job.data).separator
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **_shape(job),
        **fixed,
        "max_position_embeddings": job.data.seq_len,
        "bos_token_id": separator,
        "eos_token_id": separator,
        "torch_dtype": dtype,
    }


def check(folder: Path, job: Job) -> None:
    """Raises ConfigError with every key in which the folder's config is not the job's model."""
    source = folder / CONFIG
    given = _filled_in(_read(source))
    problems = [f"{source}: {problem}" for problem in _differences(given, job)]
    if problems:
        raise ConfigError(problems)


def _read(source: Path) -> dict[str, Any]:
    try:
        config = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{source}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ConfigError([f"{source}: not JSON: {error}"]) from None
    if not isinstance(config, dict):
        raise ConfigError([f"{source}: expected keys and values, found {found(config)}"])
    return config


def _filled_in(config: dict[str, Any]) -> dict[str, Any]:
    """All keys in one dict, with what a Llama has where nothing is said (null is nothing)."""
    # transformers 5 has the positions' keys in a section, 4 only what is not the default.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if isinstance(rope, dict):
        rope = {"rope_type": rope.get("type", _FIXED["rope_type"]), **rope}
    else:
        rope = {"rope_type": rope}
    said = {key: value for key, value in {**config, **rope}.items() if value is not None}
    heads, width = said.get("num_attention_heads"), said.get("hidden_size")
    if isinstance(heads, int) and isinstance(width, int) and heads > 0:
        said = {"num_key_value_heads": heads, "head_dim": width // heads, **said}
    return {**_DEFAULTS, **said}


def _differences(given: dict[str, Any], job: Job) -> Iterator[str]:
    kind = given.get("model_type")
    if kind != "llama":
        yield f"model_type is {found(kind)}, this trainer knows 'llama'"
        return
    for key, wanted in _shape(job).items():
        if given.get(key) != wanted:
            ours = f"model.{_JOB_KEYS[key]}"
            yield f"{key} is {found(given.get(key))}, the job's {ours} is {found(wanted)}"
    for key, only in _FIXED.items():
        if given[key] != only:
            yield f"{key} is {found(given[key])}, this trainer knows {found(only)}"


def _shape(job: Job) -> dict[str, Any]:
    values = {**job.model.model_dump(), "vocab_size": vocab_size(job)}
    return {theirs: values[ours] for theirs, ours in _JOB_KEYS.items()}
