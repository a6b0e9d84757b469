"""Creates config.json from a job, and checks config.json against a job."""

import json
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

from trainer.contract.config.errors import found
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import Model
from trainer.contract.hugging_face.families import Family, family
from trainer.contract.storage.tokenizer_info import vocab_size, vocabulary

CONFIG = "config.json"

LINEAR = {"rope_type": "kind", "factor": "factor"}
LENGTH = {"original_max_position_embeddings": "original_max_positions"}
ROPE_KEYS = {
    "linear": LINEAR,
    "llama3": {
        **LINEAR,
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
        **LENGTH,
    },
    "yarn": {
        **LINEAR,
        "beta_slow": "low_frequency_factor",
        "beta_fast": "high_frequency_factor",
        **LENGTH,
        "truncate": "truncate",
        "mscale": "mscale",
        "mscale_all_dim": "mscale",
    },
}
"""Kind -> key of config.json's RoPE section -> key of the job's `model.rope_scaling`."""
DEFAULT = "default"
"""Kind of rotary positions that are not extended."""
YARN_FIXED = {"attention_factor": None}
"""Keys of YaRN's section of which this trainer supports one value; None: the key is absent."""
ROPE_NAMES = {theirs: ours for keys in ROPE_KEYS.values() for theirs, ours in keys.items()}
"""Key of a RoPE section -> key of the job's `model.rope_scaling`."""


def is_hugging_face(folder: Path) -> bool:
    """Returns whether the folder is in the format of Hugging Face: it has a config.json."""
    return (folder / CONFIG).is_file()


def make(job: Job, dtype: str) -> dict[str, Any]:
    """Returns the config of a job's model, with weights stored in `dtype`."""
    ours = family(job.decoder)
    eos_id = vocabulary(job.data).eos_id
    rope = {key: value for key, value in _rope(job.decoder).items() if value is not None}
    scaling = {"rope_scaling": rope} if job.decoder.rope_scaling else {}
    types = {"layer_types": _layer_types(job.decoder)} if job.decoder.global_every else {}
    return {
        "architectures": [ours.architecture],
        "model_type": ours.kind,
        **_shape(ours, job.decoder.model_copy(update={"vocab_size": vocab_size(job)})),
        **scaling,
        **types,
        **{key: known[0] for key, known in ours.fixed.items()},
        "max_position_embeddings": job.decoder.max_positions or job.data.seq_len,
        "bos_token_id": eos_id,
        "eos_token_id": eos_id,
        "torch_dtype": dtype,
    }


def check(folder: Path, job: Job) -> None:
    """Raises ConfigError with every key in which the folder's config differs from the job."""
    source = folder / CONFIG
    ours = family(job.decoder)
    given = filled_in(ours, read(source))
    model = job.decoder.model_copy(update={"vocab_size": vocab_size(job)})
    if problems := list(differences(ours, given, model)):
        raise ConfigError([f"{source}: {problem}" for problem in problems])


def read(source: Path) -> dict[str, Any]:
    """Returns the content of a config.json. Raises ConfigError for a file that is none."""
    try:
        config = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{source}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise ConfigError([f"{source}: not JSON: {error}"]) from None
    if not isinstance(config, dict):
        raise ConfigError([f"{source}: expected a JSON object, found {found(config)}"])
    if config.get("model_type") == "mistral" and config.get("sliding_window", 0) is None:
        return {**config, "model_type": "llama"}  # without a window, they are the same
    return config


def filled_in(ours: Family, config: dict[str, Any]) -> dict[str, Any]:
    """Returns all keys in one dict, with the family's values for keys that are absent or null."""
    # transformers 5 has a section with all RoPE keys, 4 only one with non-default keys.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = _flat_rope(rope) if isinstance(rope, dict) else {"rope_type": rope}
    named = {ours.aliases.get(key, key): value for key, value in {**config, **rope}.items()}
    values = {key: value for key, value in named.items() if value is not None}
    heads, width = values.get("num_attention_heads"), values.get("hidden_size")
    if isinstance(heads, int) and isinstance(width, int) and heads > 0:
        values = {"num_key_value_heads": heads, "head_dim": width // heads, **values}
    if "layer_types" in values:
        values["sliding_window_pattern"] = _global_every(values["layer_types"])
    if values.get("rope_type") == "yarn":
        values = {"truncate": True, **values}
    if values.get("topk_method") == "greedy":
        values |= {"n_group": 1, "topk_group": 1}
    if isinstance(values.get("n_embd"), int):
        values = {"n_inner": 4 * values["n_embd"], **values}
    return {**{key: known[0] for key, known in ours.fixed.items()}, **ours.defaults, **values}


def _flat_rope(rope: dict[str, Any]) -> dict[str, Any]:
    """Returns a RoPE section with the keys of layers with a sliding window by their old names."""
    local = rope.get("sliding_attention")
    if not isinstance(local, dict):
        return {"rope_type": rope.get("type", DEFAULT), **rope}
    scaled = {k: v for k, v in local.items() if k == "rope_type" and v != DEFAULT}
    return {
        **(rope.get("full_attention") or {}),
        "rope_local_base_freq": local.get("rope_theta"),
        **scaled,
    }


def _layer_types(model: Model) -> list[str]:
    return [
        "full_attention" if model.window_of(layer) is None else "sliding_attention"
        for layer in range(model.layers)
    ]


def _global_every(layer_types: Any) -> Any:
    """Returns n if every nth layer, and no other, has full attention; else the types themselves."""
    if not isinstance(layer_types, list) or "full_attention" not in layer_types:
        return layer_types
    every = layer_types.index("full_attention") + 1
    fits = all(
        (kind == "full_attention") == ((layer + 1) % every == 0)
        for layer, kind in enumerate(layer_types)
    )
    return every if fits else layer_types


def differences(ours: Family, given: dict[str, Any], model: Model) -> Iterator[str]:
    """Yields each key in which a config, filled in, differs from a model of the family."""
    kind = given.get("model_type")
    if kind != ours.kind:
        yield f"model_type is {found(kind)}, but the job's model is a {found(ours.kind)}"
        return
    wanted = _shape(ours, model)
    for key, value in wanted.items():
        if given.get(key) != value:
            name = f"model.{ours.keys[key]}"
            yield f"{key} is {found(given.get(key))}, but the job's {name} is {found(value)}"
    if "rope_theta" in wanted:
        for key, value in _rope(model).items():
            if given.get(key) == value:
                continue
            if key in YARN_FIXED:
                only = "without it" if value is None else f"with {found(value)}"
                yield f"{key} is {found(given.get(key))}, but YaRN is supported only {only}"
                continue
            name = f"model.rope_scaling.{ROPE_NAMES[key]}"
            yield f"{key} is {found(given.get(key))}, but the job's {name} is {found(value)}"
    for key, known in ours.fixed.items():
        if given[key] not in known:
            only = " or ".join(map(found, known))
            yield f"{key} is {found(given[key])}, but this trainer supports only {only}"


def _shape(ours: Family, model: Model) -> dict[str, Any]:
    return {theirs: attrgetter(key)(model) for theirs, key in ours.keys.items()}


def _rope(model: Model) -> dict[str, Any]:
    """Returns the keys of config.json for extended rotary positions."""
    scaling = model.rope_scaling
    if scaling is None:
        return {"rope_type": DEFAULT}
    keys = {theirs: getattr(scaling, key) for theirs, key in ROPE_KEYS[scaling.kind].items()}
    return {**keys, **(YARN_FIXED if scaling.kind == "yarn" else {})}
