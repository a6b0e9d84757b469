"""Presets are the models that they are named after, and what a model's keys must have together."""

from typing import Any

import pytest

from tests.support.llama_jobs import CORPUS, world_of
from tests.support.worlds import cpu_world, tiny_job
from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.config.presets import PRESETS
from trainer.contract.estimates.roofline import flops_per_token
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


def flops_of(**keys: Any) -> float:
    job = Job.model_validate(
        {
            "name": "job",
            "steps": 1,
            "model": {"preset": "mixtral-8x7b", **keys},
            "data": {"source": "text", "path": "x", "seq_len": 4096, "global_batch": 32},
        }
    )
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
