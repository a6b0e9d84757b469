"""Folders of Hugging Face's files that are refused, and exports that are."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.jobs import job_of
from tests.support.model_families import FAMILIES
from tests.support.model_folders import (
    assert_equal,
    folder_maker,
    loaded,
    params_of,
    plan_of,
    tensors_of,
)
from trainer import hugging_face
from trainer.contract.config.loader import ConfigError
from trainer.contract.hugging_face.config import is_hugging_face


@pytest.fixture
def exported(tmp_path):
    return folder_maker(tmp_path / "hf")


def test_every_key_that_differs_is_named_with_both_values(exported):
    folder, _ = exported(job_of())
    other = job_of(
        model={"layers": 3, "d_model": 64, "heads": 8, "kv_heads": 4, "head_dim": 16, "d_ff": 128,
               "vocab_size": 300, "rope_theta": 5e5, "norm_eps": 1e-6, "tied_embeddings": False}
    )  # fmt: skip
    with pytest.raises(ConfigError) as error:
        loaded(folder, other)
    file = folder / "config.json"
    assert error.value.lines == [
        f"{file}: hidden_size is 32, but the job's model.d_model is 64",
        f"{file}: intermediate_size is 64, but the job's model.d_ff is 128",
        f"{file}: num_hidden_layers is 2, but the job's model.layers is 3",
        f"{file}: num_attention_heads is 4, but the job's model.heads is 8",
        f"{file}: num_key_value_heads is 2, but the job's model.kv_heads is 4",
        f"{file}: head_dim is 8, but the job's model.head_dim is 16",
        f"{file}: vocab_size is 257, but the job's model.vocab_size is 300",
        f"{file}: rope_theta is 10000.0, but the job's model.rope_theta is 500000.0",
        f"{file}: rms_norm_eps is 1e-05, but the job's model.norm_eps is 1e-06",
        f"{file}: tie_word_embeddings is true, but the job's model.tied_embeddings is false",
    ]


OTHER_KINDS = {
    "another family": ({"model_type": "qwen3"}, ["model_type is 'qwen3'"]),
    "biases": ({"attention_bias": True, "mlp_bias": True}, ["attention_bias", "mlp_bias"]),
    "activation": (
        {"hidden_act": "gelu"},
        ["hidden_act is 'gelu', but this trainer supports only 'silu'"],
    ),
    "scaled positions": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 32.0}},
        ["rope_type is 'llama3', but the job's model.rope_scaling.kind is 'default'"],
    ),
    "scaled positions, as they were": (
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        ["rope_type is 'linear', but the job's model.rope_scaling.kind is 'default'"],
    ),
    "positions of transformers 5": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        ["rope_theta is 500000.0, but the job's model.rope_theta is 10000.0"],
    ),
    "nothing said": (
        {"hidden_size": None},
        ["hidden_size is nothing, but the job's model.d_model"],
    ),
}


@pytest.mark.parametrize(("change", "said"), OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_models_of_another_kind_are_refused(exported, change, said):
    folder, _ = exported(job_of())
    _rewrite(folder / "config.json", change)
    with pytest.raises(ConfigError) as error:
        loaded(folder, job_of())
    assert len(error.value.lines) == len(said)
    for problem, words in zip(error.value.lines, said, strict=True):
        assert words in problem


def test_windows_and_positions_of_gpt_oss_must_be_those_of_the_job(exported):
    folder, _ = exported(job_of(model=FAMILIES["gpt_oss"]))
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["layer_types"] = ["full_attention", "sliding_attention", "full_attention"]
    config["rope_scaling"] |= {"beta_fast": 32.0, "truncate": True, "attention_factor": 2.0}
    file.write_text(json.dumps(config))
    with pytest.raises(ConfigError) as error:
        loaded(folder, job_of(model=FAMILIES["gpt_oss"]))
    assert [line.removeprefix(f"{file}: ") for line in error.value.lines] == [
        "sliding_window_pattern is a list, but the job's model.global_every is 2",
        "beta_fast is 32.0, but the job's model.rope_scaling.high_frequency_factor is 8.0",
        "truncate is true, but the job's model.rope_scaling.truncate is false",
        "attention_factor is 2.0, but YaRN is supported only without it",
    ]


def test_routing_and_positions_of_deepseek_must_be_those_of_the_job(exported):
    folder, _ = exported(job_of(model=FAMILIES["deepseek_v2"]))
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config |= {"q_lora_rank": None, "topk_method": "greedy", "norm_topk_prob": True}
    config["rope_scaling"] |= {"mscale_all_dim": 1.0}
    del config["rope_scaling"]["truncate"]
    file.write_text(json.dumps(config))
    with pytest.raises(ConfigError) as error:
        loaded(folder, job_of(model=FAMILIES["deepseek_v2"]))
    assert [line.removeprefix(f"{file}: ") for line in error.value.lines] == [
        "q_lora_rank is nothing, but the job's model.latent_attention.query_rank is 20",
        "n_group is 1, but the job's model.moe.groups is 4",
        "topk_group is 1, but the job's model.moe.top_groups is 2",
        "mscale_all_dim is 1.0, but the job's model.rope_scaling.mscale is 0.7",
        "norm_topk_prob is true, but this trainer supports only false",
    ]


def test_keys_that_a_llama_has_by_default_need_not_be_said(exported):
    job = job_of(model={"kv_heads": 4, "norm_eps": 1e-6, "tied_embeddings": False})
    folder, params = exported(job)
    defaults = ["num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps", "hidden_act",
                "tie_word_embeddings", "attention_bias", "mlp_bias"]  # fmt: skip
    _rewrite(folder / "config.json", dict.fromkeys(defaults))
    assert_equal(loaded(folder, job), params)


def test_all_tensors_that_do_not_fit_are_named(exported):
    job = job_of()
    folder, _ = exported(job)
    tensors = tensors_of(folder)
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors["model.embed_tokens.weight"] = np.zeros((256, 32), np.float32)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].astype(np.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError) as error:
        loaded(folder, job)
    shapes = "has shape (256, 32), but the job's model has (257, 32)"
    assert sorted(problem.split(": ", 1)[1] for problem in error.value.lines) == [
        "lm_head.weight is unexpected",
        f"model.embed_tokens.weight {shapes}",
        "model.layers.0.mlp.up_proj.weight has dtype I8, expected one of F32, BF16, F16",
        "model.layers.1.mlp.up_proj.weight is missing",
        "model.norm.weight is missing",
    ]


def _cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


BROKEN = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "contains neither"),
    "a cut file": (_cut, "model.safetensors: cannot be read"),
    "a config that is no JSON": (
        lambda folder: (folder / "config.json").write_text("{"), "config.json: not JSON"
    ),
    "a config of a list": (
        lambda folder: (folder / "config.json").write_text("[]"), "expected a JSON object"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("breaks", "said"), BROKEN.values(), ids=BROKEN)
def test_broken_folder_is_reported_with_file(exported, breaks, said):
    folder, _ = exported(job_of())
    breaks(folder)
    with pytest.raises(ConfigError, match=said):
        loaded(folder, job_of())


def test_a_file_that_the_index_names_must_be_there(exported):
    folder, _ = exported(job_of(), shard_bytes=20_000)
    sorted(folder.glob("*.safetensors"))[1].unlink()
    with pytest.raises(ConfigError, match=r"model-00002-of-.*cannot be read"):
        loaded(folder, job_of())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": 1}')
    with pytest.raises(ConfigError, match="not an index"):
        loaded(folder, job_of())


def test_export_refuses_a_full_folder_and_another_models_parameters(tmp_path):
    job = job_of()
    params = params_of(job, plan_of(job))
    with pytest.raises(ValueError, match=r"unexpected \['output.kernel'\]"):
        hugging_face.export(job, {**params, "output.kernel": params["embedding.table"]}, tmp_path)
    (tmp_path / "something").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        hugging_face.export(job, params, tmp_path)


def test_a_broken_off_export_is_no_folder_of_hugging_face(tmp_path):
    job = job_of()
    params = params_of(job, plan_of(job))
    with pytest.raises(AssertionError, match="final_norm"):
        hugging_face.export(job, {**params, "final_norm.scale": np.zeros(3)}, tmp_path)
    assert not is_hugging_face(tmp_path)


def _rewrite(path, changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
