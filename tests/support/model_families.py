"""Small models of every family that Hugging Face has a name for."""

from typing import Any

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        "rope_scaling": {"kind": "llama3", "factor": 8.0, "trained_positions": 16},
        "tied_embeddings": False,
    },
    "qwen2": {"biases": "qkv", "tied_embeddings": False},
    "qwen3": {"query_key_norm": True, "head_dim": 16},
    "mistral": {"window": 5, "kv_heads": 1, "tied_embeddings": False},
    "mixtral": {"experts": {"count": 4}, "tied_embeddings": False},
    "gemma": {"feed_forward": "geglu", "scaled_embedding": True, "head_dim": 16, "kv_heads": 1},
    "gpt2": {
        "kv_heads": 4, "positions": "learned", "max_positions": 48, "norm": "layer",
        "biases": "all", "feed_forward": "gelu",
    },
}  # fmt: skip
"""By `model_type`: keys of a job's `model` section, beside those of the tests' tiny job."""
