"""Small models of every family that Hugging Face has a name for."""

from typing import Any

GEMMA: dict[str, Any] = {
    "mlp": "geglu", "scale_embeddings": True, "norm_position": "both", "head_dim": 16,
    "sliding_window": 5, "global_every": 2, "query_scale_dim": 12,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_scaling": {"kind": "llama3", "factor": 8.0, "original_max_positions": 16},
        "tied_embeddings": False,
    },
    "qwen2": {"biases": "qkv", "tied_embeddings": False},
    "qwen3": {"qk_norm": True, "head_dim": 16},
    "mistral": {"sliding_window": 5, "kv_heads": 1, "tied_embeddings": False},
    "mixtral": {"moe": {"count": 4}, "tied_embeddings": False},
    "qwen3_moe": {
        "qk_norm": True, "moe": {"count": 4, "normalize_weights": False}, "tied_embeddings": False,
    },
    "olmo2": {"norm_position": "after", "qk_norm": "full", "tied_embeddings": False},
    "gemma": {"mlp": "geglu", "scale_embeddings": True, "head_dim": 16, "kv_heads": 1},
    "gemma2": {
        **GEMMA, "attn_logit_softcap": 2.0, "final_logit_softcap": 3.0, "layers": 3,
    },
    "gemma3_text": {**GEMMA, "qk_norm": True, "local_rope_theta": 100.0, "layers": 5},
    "gpt_oss": {
        "mlp": "clamped_swiglu", "biases": "all", "sliding_window": 5, "global_every": 2,
        "attention_sinks": True, "moe": {"count": 4}, "tied_embeddings": False, "layers": 3,
        "rope_scaling": {
            "kind": "yarn", "factor": 4.0, "high_frequency_factor": 8.0,
            "original_max_positions": 64,
        },
    },
    "gpt2": {
        "kv_heads": 4, "positions": "learned", "max_positions": 48, "norm": "layer",
        "biases": "all", "mlp": "gelu",
    },
}  # fmt: skip
"""By `model_type`: keys of a job's `model` section, beside those of the tests' tiny job."""
