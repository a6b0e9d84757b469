"""The model that a config.json describes, and configs of models that do not exist here."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import job_of
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import Model
from trainer.contract.config.presets import PRESETS
from trainer.contract.hugging_face.config import CONFIG, make
from trainer.contract.hugging_face.model_reader import read_model

OF_TRAINING = ("capacity_factor", "load_balance_loss_weight", "bias_update_rate")
"""Keys of experts that no config.json has."""
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 300,
}  # fmt: skip


def written(folder: Path, config: dict[str, Any]) -> Path:
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    return folder


def config_of(model: Model) -> dict[str, Any]:
    return make(job_of().model_copy(update={"model": model}), "bfloat16")


def shape(model: Model) -> dict[str, Any]:
    kept = model.model_dump(exclude={"preset", "vocab_size"})
    if kept["moe"]:
        kept["moe"] = {key: kept["moe"][key] for key in kept["moe"].keys() - OF_TRAINING}
    return kept


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_read_back_from_its_config(tmp_path: Path, preset: str) -> None:
    model = Model.model_validate({"preset": preset})
    config = config_of(model)
    found = read_model(written(tmp_path, config))
    assert shape(found) == shape(model)
    assert found.vocab_size == config["vocab_size"]


def test_keys_that_a_config_omits_have_the_values_of_its_family(tmp_path: Path) -> None:
    found = read_model(written(tmp_path, LLAMA))
    assert (found.kv_heads, found.head_dim, found.rope_theta) == (4, 16, 10_000.0)
    assert (found.norm_eps, found.tied_embeddings) == (1e-6, False)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"rope_type": "linear", "factor": 2.0}, {"kind": "linear", "factor": 2.0}),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
          "beta_fast": 16.0, "beta_slow": 2.0},
         {"kind": "yarn", "factor": 4.0, "original_max_positions": 64, "truncate": True,
          "high_frequency_factor": 16.0, "low_frequency_factor": 2.0}),
    ],
)  # fmt: skip
def test_extended_positions_are_read(
    tmp_path: Path, given: dict[str, Any], ours: dict[str, Any]
) -> None:
    found = read_model(written(tmp_path, {**LLAMA, "rope_scaling": given})).rope_scaling
    assert found and found.model_dump(exclude_defaults=True) == ours


def test_a_mistral_without_a_window_is_a_llama(tmp_path: Path) -> None:
    config = {**LLAMA, "model_type": "mistral", "sliding_window": None}
    assert read_model(written(tmp_path, config)) == read_model(written(tmp_path, LLAMA))


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({"model_type": "mamba"}, ["model_type is 'mamba'. Expected one of: llama, qwen2,"]),
        ({"hidden_size": None, "intermediate_size": None},
         ["hidden_size: ", "intermediate_size: "]),
        ({"num_hidden_layers": "many"}, ["num_hidden_layers: "]),
        ({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 5, "n_positions": 32},
         ["n_embd: 64 is not divisible by 5 heads"]),
        ({"hidden_act": "relu"}, ["hidden_act is 'relu', but this trainer supports only 'silu'"]),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
         ["rope_type is 'dynamic'. Expected one of: default, linear, llama3, yarn"]),
        ({"model_type": "gpt2", "n_layer": 2, "n_head": 5, "n_positions": 32},
         ["n_embd: missing", "n_inner: missing"]),
        ({"model_type": "mistral", "sliding_window": 0}, ["sliding_window: "]),
        ({"model_type": "mistral"}, ["mistral does not support model.sliding_window: None"]),
    ],
)  # fmt: skip
def test_a_config_of_another_model_is_refused_with_all_of_its_keys(
    tmp_path: Path, changes: dict[str, Any], problems: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_model(written(tmp_path, {**LLAMA, **changes}))
    lines = caught.value.lines
    assert len(lines) == len(problems), lines
    for line, problem in zip(lines, problems, strict=True):
        assert line.startswith(f"{tmp_path / CONFIG}: {problem}")
