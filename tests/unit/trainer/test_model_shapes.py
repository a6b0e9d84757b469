"""The modules and the table in trainer/contract/planning/parameter_shapes.py say the same."""

import jax.numpy as jnp
import pytest

from tests.support.jobs import job_of
from tests.support.model_families import FAMILIES
from trainer.contract.planning.parameter_shapes import parameters
from trainer.model.embeddings import Vocabulary
from trainer.model.parameters import abstract, named_parameters

MODELS = {
    "tied": {"tied_embeddings": True},
    "untied": {"tied_embeddings": False},
    "one layer, one kv head": {"layers": 1, "kv_heads": 1},
    "wide heads": {"head_dim": 16},
    "gpt2": {"kv_heads": 4, "positions": "learned", "max_positions": 64, "norm": "layer",
             "biases": "all", "mlp": "gelu"},
    "qwen": {"qk_norm": True, "biases": "qkv"},
    "olmo2": {"norm_position": "after", "qk_norm": "full"},
    "norms before and after": {"norm_position": "both", "norm": "layer", "qk_norm": True},
    "gpt-oss": {"biases": "all", "moe": {"count": 4}, "attention_sinks": True,
                "mlp": "clamped_swiglu"},
    "moe": {"moe": {"count": 4}},
    **{kind: FAMILIES[kind] for kind in ("deepseek_v2", "deepseek_v2_lite", "deepseek_v3")},
    "llama3-8b": {"preset": "llama3-8b", "layers": 32, "d_model": 4096, "heads": 32,
                  "kv_heads": 8, "d_ff": 14336},
}  # fmt: skip


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_names_shapes_and_axes_are_those_of_the_spec(changes):
    job = job_of(model=changes)
    vocabulary = Vocabulary(job.decoder.vocab_size or 257, 128_256 if job.decoder.preset else 384)
    module = abstract(job, vocabulary, jnp.dtype("float32"))
    made = {
        name: (variable.shape, variable.get_metadata()["out_sharding"], variable.dtype)
        for name, variable in named_parameters(module).items()
    }
    planned = {
        p.name: (p.shape, p.axes, jnp.float32) for p in parameters(job.decoder, vocabulary.padded)
    }
    assert made == planned
