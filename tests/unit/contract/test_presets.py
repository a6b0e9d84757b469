"""Presets are the models that they are named after, and what a model's keys must have together."""

from typing import Any

import pytest

from tests.support.llama_jobs import CORPUS, world_of
from tests.support.worlds import cpu_world, tiny_job
from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.config.presets import PRESETS
from trainer.contract.estimates.flops import attention_flops_per_token, flops_per_token
from trainer.contract.planning.parameter_shapes import parameters
from trainer.contract.planning.planner import PlanError, resolve

PUBLISHED = {
    "llama3-1b": 1_235_814_400,
    "llama3-8b": 8_030_261_248,
    "llama3.1-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "gpt2": 124_439_808,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "gemma-2b": 2_506_172_416,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-270m": 268_098_176,
    "gemma3-1b": 999_885_952,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
}
"""Parameters that their files have."""


def model_of(**keys: Any) -> Model:
    return tiny_job(model={"preset": "tiny", **keys}).decoder


def problems_of(**keys: Any) -> dict[str, str]:
    with pytest.raises(PlanError) as error:
        resolve(tiny_job(model={"preset": "tiny", **keys}), cpu_world(1, 1), CORPUS)
    return dict(error.value.problems)


@pytest.mark.parametrize(("preset", "size"), PUBLISHED.items(), ids=PUBLISHED)
def test_a_preset_has_as_many_parameters_as_the_model_that_it_names(preset: str, size: int) -> None:
    model = Model.model_validate({"preset": preset})
    assert model.vocab_size
    assert sum(p.size for p in parameters(model, model.vocab_size)) == size


def test_all_presets_of_published_models_are_compared() -> None:
    assert set(PRESETS) == {*PUBLISHED, "tiny", "small"}


def test_learned_positions_need_their_number_and_rotary_ones_have_none() -> None:
    assert "at least seq_len (64)" in problems_of(positions="learned")["model.max_positions"]
    assert "Remove this key" in problems_of(max_positions=64)["model.max_positions"]
    found = problems_of(positions="learned", max_positions=32)
    assert found == {"data.seq_len": "64 is more than the model's 32 learned positions"}


def test_learned_positions_cannot_be_scaled() -> None:
    scaling = {"kind": "linear", "factor": 2.0}
    found = problems_of(positions="learned", max_positions=64, rope_scaling=scaling)
    assert set(found) == {"model.rope_scaling"}


def test_keys_of_windows_need_a_window_and_a_layer_without_one() -> None:
    found = problems_of(global_every=2, local_rope_theta=100.0)
    assert set(found) == {"model.global_every", "model.local_rope_theta"}
    assert "set sliding_window" in found["model.global_every"]
    found = problems_of(global_every=3, sliding_window=8)
    assert "more than the model's 2 layers" in found["model.global_every"]


def test_a_token_takes_no_more_experts_than_there_are() -> None:
    found = problems_of(moe={"count": 2, "top_k": 3})
    assert set(found) == {"model.moe.top_k"}


def test_groups_have_room_for_the_experts_of_a_token() -> None:
    found = problems_of(moe={"count": 8, "groups": 4, "top_groups": 1, "top_k": 3})
    assert found == {"model.moe.top_k": "3 is more than the 2 experts of top_groups 1"}
    found = problems_of(moe={"count": 8, "groups": 3})
    assert found == {"model.moe.groups": "8 experts are not divisible by 3 groups"}
    found = problems_of(moe={"count": 8, "groups": 8, "top_groups": 2, "scores": "sigmoid"})
    assert "at least two experts" in found["model.moe.groups"]
    found = problems_of(moe={"count": 8, "top_groups": 2})
    assert "more than the number of groups, 1" in found["model.moe.top_groups"]


def test_dense_layers_need_their_width_and_leave_some_with_experts() -> None:
    found = problems_of(moe={"count": 4, "dense_layers": 1})
    assert "need this key" in found["model.moe.dense_d_ff"]
    found = problems_of(moe={"count": 4, "dense_d_ff": 32})
    assert "Remove this key" in found["model.moe.dense_d_ff"]
    found = problems_of(moe={"count": 4, "dense_layers": 2, "dense_d_ff": 32})
    assert "no layer of 2" in found["model.moe.dense_layers"]


LATENT = {"rank": 16, "plain_dim": 8, "rotary_dim": 3, "value_dim": 8}


def test_latent_attention_names_all_that_it_does_not_have() -> None:
    found = problems_of(latent_attention=LATENT, qk_norm=True, biases="all", attention_sinks=True)
    assert set(found) == {
        "model.kv_heads", "model.qk_norm", "model.biases", "model.attention_sinks",
        "model.latent_attention.rotary_dim",
    }  # fmt: skip
    assert (
        found["model.kv_heads"]
        == "found 2. With latent_attention, it must be the number of heads, 4"
    )


def test_widths_of_latent_attention_add_up_to_the_width_of_a_head() -> None:
    even = {**LATENT, "rotary_dim": 4}
    assert model_of(latent_attention=even).head_dim == 12
    found = problems_of(latent_attention=even, kv_heads=4, head_dim=16)
    assert set(found) == {"model.head_dim"}
    assert "must be plain_dim plus rotary_dim, 12" in found["model.head_dim"]


def test_the_size_of_scores_with_yarn_is_for_latent_attention() -> None:
    found = problems_of(rope_scaling={"kind": "yarn", "factor": 4.0, "mscale": 1.0})
    assert set(found) == {"model.rope_scaling.mscale"}


@pytest.mark.parametrize(
    ("preset", "active"),
    [("deepseek-v2-lite", 2.4e9), ("deepseek-v2", 21e9), ("deepseek-v3", 37e9)],
)
def test_a_token_uses_as_many_parameters_as_published(preset: str, active: float) -> None:
    """Weights of matrix products; a look-up of the embedding is none."""
    attention = attention_flops_per_token(job_of(preset=preset))
    assert (flops_of(preset=preset) - attention) / 6 == pytest.approx(active, rel=0.03)


def job_of(**keys: Any) -> Job:
    return Job.model_validate(
        {
            "name": "job",
            "steps": 1,
            "model": {"preset": "mixtral-8x7b", **keys},
            "data": {"source": "text", "path": "x", "seq_len": 4096, "global_batch": 32},
        }
    )


def flops_of(**keys: Any) -> float:
    job = job_of(**keys)
    return flops_per_token(job, resolve(job, world_of("v5p-64"), CORPUS))


def test_a_token_costs_the_experts_of_its_choice() -> None:
    """Of Mixtral's 47 billion parameters a token meets 13."""
    attention = 6 * 32 * 4096 * 4096
    active = (flops_of() - attention) / 6
    assert active == pytest.approx(12.9e9, rel=0.02)


def test_a_window_halves_no_more_than_the_positions_that_are_not_seen() -> None:
    """Of 4,096 positions a window of 1,024 sees 1,024 but at the start: 7/32 in place of 1/2."""
    attention = 6 * 32 * 4096 * 4096
    saved = flops_of() - flops_of(sliding_window=1024)
    assert saved == pytest.approx(attention * (1 - 7 / 16))


def test_only_layers_with_the_window_save_what_it_hides() -> None:
    """Every sixth of 32 layers is global: 5 layers attend to all positions, 27 to the window."""
    saved = flops_of() - flops_of(sliding_window=1024)
    mixed = flops_of() - flops_of(sliding_window=1024, global_every=6)
    assert mixed == pytest.approx(saved * 27 / 32)
