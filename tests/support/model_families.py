"""Small models of every family that Hugging Face has a name for."""

from typing import Any

GEMMA: dict[str, Any] = {
    "mlp": "geglu", "scale_embeddings": True, "norm_position": "both", "head_dim": 16,
    "sliding_window": 5, "global_every": 2, "query_scale_dim": 12,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "layers": 3, "kv_heads": 4, "norm_eps": 1e-6, "tied_embeddings": False,
    "latent_attention": {
        "rank": 12, "query_rank": 20, "plain_dim": 8, "rotary_dim": 4, "value_dim": 6,
    },
    "rope_scaling": {
        "kind": "yarn", "factor": 4.0, "high_frequency_factor": 8.0, "truncate": True,
        "original_max_positions": 64, "mscale": 0.7,
    },
}  # fmt: skip
DEEPSEEK_EXPERTS: dict[str, Any] = {
    "count": 8, "groups": 4, "top_groups": 2, "top_k": 3, "weight_scale": 1.5, "shared": 2,
    "dense_layers": 1, "dense_d_ff": 40,
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
    "deepseek_v2": {**DEEPSEEK, "moe": {**DEEPSEEK_EXPERTS, "normalize_weights": False}},
    "deepseek_v2_lite": {
        **DEEPSEEK,
        "latent_attention": {"rank": 12, "plain_dim": 8, "rotary_dim": 4, "value_dim": 8},
        "moe": {
            "count": 8, "top_k": 3, "normalize_weights": False, "shared": 1, "dense_layers": 1,
            "dense_d_ff": 40,
        },
    },
    "deepseek_v3": {
        **DEEPSEEK,
        "moe": {**DEEPSEEK_EXPERTS, "scores": "sigmoid", "bias_update_rate": 0.01},
    },
    "gpt2": {
        "kv_heads": 4, "positions": "learned", "max_positions": 48, "norm": "layer",
        "biases": "all", "mlp": "gelu",
    },
}  # fmt: skip
"""By `model_type`: keys of a job's `model` section, beside those of the tests' tiny job."""
TYPES = {"deepseek_v2_lite": "deepseek_v2"}
"""`model_type` of models that are another of the same family."""
