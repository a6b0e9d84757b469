"""Model shapes by name. Sources: the published `config.json` of each model."""

GEMMA = {
    "norm_eps": 1e-6, "norm_position": "both", "mlp": "geglu", "scale_embeddings": True,
    "tied_embeddings": True,
}  # fmt: skip
GEMMA2 = {
    **GEMMA, "vocab_size": 256_000, "sliding_window": 4096, "global_every": 2,
    "attn_logit_softcap": 50.0, "final_logit_softcap": 30.0,
}  # fmt: skip
GEMMA3 = {
    **GEMMA, "vocab_size": 262_144, "sliding_window": 512, "global_every": 6, "qk_norm": True,
    "rope_theta": 1_000_000.0, "local_rope_theta": 10_000.0,
}  # fmt: skip

GPT_OSS = {
    "d_model": 2880, "heads": 64, "kv_heads": 8, "head_dim": 64, "d_ff": 2880,
    "vocab_size": 201_088, "tied_embeddings": False, "rope_theta": 150_000.0, "biases": "all",
    "mlp": "clamped_swiglu", "sliding_window": 128, "global_every": 2, "attention_sinks": True,
    "rope_scaling": {
        "kind": "yarn", "factor": 32.0, "high_frequency_factor": 32.0,
        "original_max_positions": 4096,
    },
}  # fmt: skip

DEEPSEEK = {
    "norm_eps": 1e-6, "tied_embeddings": False,
    "latent_attention": {
        "rank": 512, "query_rank": 1536, "plain_dim": 128, "rotary_dim": 64, "value_dim": 128,
    },
}  # fmt: skip
DEEPSEEK_ROPE = {
    "kind": "yarn", "factor": 40.0, "high_frequency_factor": 32.0,
    "original_max_positions": 4096, "truncate": True,
}  # fmt: skip
DEEPSEEK_V2 = {
    **DEEPSEEK, "vocab_size": 102_400, "rope_scaling": {**DEEPSEEK_ROPE, "mscale": 0.707},
}  # fmt: skip

PRESETS: dict[str, dict[str, object]] = {
    "tiny": {"layers": 2, "d_model": 64, "heads": 4, "kv_heads": 2, "d_ff": 192},
    "small": {"layers": 4, "d_model": 256, "heads": 4, "kv_heads": 2, "d_ff": 768},
    # Llama 3.2 1B
    "llama3-1b": {
        "layers": 16, "d_model": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "d_ff": 8192,
        "vocab_size": 128_256, "rope_theta": 500_000.0, "tied_embeddings": True,
        "rope_scaling": {"kind": "llama3", "factor": 32.0},
    },
    # Meta-Llama-3-8B
    "llama3-8b": {
        "layers": 32, "d_model": 4096, "heads": 32, "kv_heads": 8, "d_ff": 14_336,
        "vocab_size": 128_256, "rope_theta": 500_000.0, "tied_embeddings": False,
    },
    # Llama-3.1-8B
    "llama3.1-8b": {
        "layers": 32, "d_model": 4096, "heads": 32, "kv_heads": 8, "d_ff": 14_336,
        "vocab_size": 128_256, "rope_theta": 500_000.0, "tied_embeddings": False,
        "rope_scaling": {"kind": "llama3", "factor": 8.0},
    },
    # Meta-Llama-3-70B
    "llama3-70b": {
        "layers": 80, "d_model": 8192, "heads": 64, "kv_heads": 8, "d_ff": 28_672,
        "vocab_size": 128_256, "rope_theta": 500_000.0, "tied_embeddings": False,
    },
    # The smallest GPT-2, with 124 million parameters
    "gpt2": {
        "layers": 12, "d_model": 768, "heads": 12, "d_ff": 3072, "vocab_size": 50_257,
        "positions": "learned", "max_positions": 1024, "norm": "layer", "biases": "all",
        "mlp": "gelu",
    },
    "qwen3-0.6b": {
        "layers": 28, "d_model": 1024, "heads": 16, "kv_heads": 8, "head_dim": 128, "d_ff": 3072,
        "vocab_size": 151_936, "rope_theta": 1_000_000.0, "norm_eps": 1e-6,
        "qk_norm": True, "tied_embeddings": True,
    },
    "qwen3-8b": {
        "layers": 36, "d_model": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "d_ff": 12_288,
        "vocab_size": 151_936, "rope_theta": 1_000_000.0, "norm_eps": 1e-6,
        "qk_norm": True, "tied_embeddings": False,
    },
    # Qwen3-30B-A3B: 30 billion parameters, of which a token uses 3
    "qwen3-30b-a3b": {
        "layers": 48, "d_model": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "d_ff": 768,
        "vocab_size": 151_936, "rope_theta": 1_000_000.0, "norm_eps": 1e-6,
        "qk_norm": True, "tied_embeddings": False,
        "moe": {"count": 128, "top_k": 8, "load_balance_loss_weight": 0.001},
    },
    # Qwen3-235B-A22B
    "qwen3-235b-a22b": {
        "layers": 94, "d_model": 4096, "heads": 64, "kv_heads": 4, "head_dim": 128, "d_ff": 1536,
        "vocab_size": 151_936, "rope_theta": 1_000_000.0, "norm_eps": 1e-6,
        "qk_norm": True, "tied_embeddings": False,
        "moe": {"count": 128, "top_k": 8, "load_balance_loss_weight": 0.001},
    },
    # OLMo-2-0425-1B
    "olmo2-1b": {
        "layers": 16, "d_model": 2048, "heads": 16, "d_ff": 8192, "vocab_size": 100_352,
        "rope_theta": 500_000.0, "norm_eps": 1e-6, "norm_position": "after", "qk_norm": "full",
        "tied_embeddings": False,
    },
    # OLMo-2-1124-7B
    "olmo2-7b": {
        "layers": 32, "d_model": 4096, "heads": 32, "d_ff": 11_008, "vocab_size": 100_352,
        "rope_theta": 500_000.0, "norm_eps": 1e-6, "norm_position": "after", "qk_norm": "full",
        "tied_embeddings": False,
    },
    "gemma-2b": {
        "layers": 18, "d_model": 2048, "heads": 8, "kv_heads": 1, "head_dim": 256, "d_ff": 16_384,
        "vocab_size": 256_000, "norm_eps": 1e-6, "mlp": "geglu",
        "scale_embeddings": True, "tied_embeddings": True,
    },
    "gpt-oss-20b": {
        "layers": 24, **GPT_OSS, "moe": {"count": 32, "top_k": 4},
    },
    "gpt-oss-120b": {
        "layers": 36, **GPT_OSS, "moe": {"count": 128, "top_k": 4},
    },
    "gemma2-2b": {
        "layers": 26, "d_model": 2304, "heads": 8, "kv_heads": 4, "head_dim": 256, "d_ff": 9216,
        "query_scale_dim": 256, **GEMMA2,
    },
    "gemma2-9b": {
        "layers": 42, "d_model": 3584, "heads": 16, "kv_heads": 8, "head_dim": 256, "d_ff": 14_336,
        "query_scale_dim": 256, **GEMMA2,
    },
    "gemma2-27b": {
        "layers": 46, "d_model": 4608, "heads": 32, "kv_heads": 16, "head_dim": 128,
        "d_ff": 36_864, "query_scale_dim": 144, **GEMMA2,
    },
    "gemma3-270m": {
        "layers": 18, "d_model": 640, "heads": 4, "kv_heads": 1, "head_dim": 256, "d_ff": 2048,
        "query_scale_dim": 256, **GEMMA3,
    },
    "gemma3-1b": {
        "layers": 26, "d_model": 1152, "heads": 4, "kv_heads": 1, "head_dim": 256, "d_ff": 6912,
        "query_scale_dim": 256, **GEMMA3,
    },
    # DeepSeek-V2-Lite: 15.7 billion parameters, of which a token uses 2.4
    "deepseek-v2-lite": {
        "layers": 27, "d_model": 2048, "heads": 16, "d_ff": 1408, **DEEPSEEK_V2,
        "latent_attention": {
            "rank": 512, "plain_dim": 128, "rotary_dim": 64, "value_dim": 128,
        },
        "moe": {
            "count": 64, "top_k": 6, "normalize_weights": False, "shared": 2,
            "dense_layers": 1, "dense_d_ff": 10_944, "load_balance_loss_weight": 0.001,
        },
    },
    # DeepSeek-V2: 236 billion parameters, of which a token uses 21
    "deepseek-v2": {
        "layers": 60, "d_model": 5120, "heads": 128, "d_ff": 1536, **DEEPSEEK_V2,
        "moe": {
            "count": 160, "top_k": 6, "normalize_weights": False, "weight_scale": 16.0,
            "groups": 8, "top_groups": 3, "shared": 2, "dense_layers": 1, "dense_d_ff": 12_288,
            "load_balance_loss_weight": 0.001,
        },
    },
    # DeepSeek-V3: 671 billion parameters, of which a token uses 37; without multi-token prediction.
    # The loss weight and the update rate: section 4.2 of https://arxiv.org/abs/2412.19437
    "deepseek-v3": {
        "layers": 61, "d_model": 7168, "heads": 128, "d_ff": 2048, "vocab_size": 129_280,
        **DEEPSEEK, "rope_scaling": {**DEEPSEEK_ROPE, "mscale": 1.0},
        "moe": {
            "count": 256, "top_k": 8, "scores": "sigmoid", "weight_scale": 2.5, "groups": 8,
            "top_groups": 4, "bias_update_rate": 0.001, "shared": 1, "dense_layers": 3,
            "dense_d_ff": 18_432, "load_balance_loss_weight": 0.0001,
        },
    },
    # Mistral-7B-v0.1
    "mistral-7b": {
        "layers": 32, "d_model": 4096, "heads": 32, "kv_heads": 8, "d_ff": 14_336,
        "vocab_size": 32_000, "sliding_window": 4096, "tied_embeddings": False,
    },
    # Mixtral-8x7B-v0.1. It has no capacity factor; 1.25 is one of those of Switch Transformers.
    "mixtral-8x7b": {
        "layers": 32, "d_model": 4096, "heads": 32, "kv_heads": 8, "d_ff": 14_336,
        "vocab_size": 32_000, "rope_theta": 1_000_000.0, "tied_embeddings": False,
        "moe": {"count": 8, "top_k": 2, "capacity_factor": 1.25},
    },
}  # fmt: skip
