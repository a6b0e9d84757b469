"""Model shapes by name. Sources: the `config.json` that each model was published with."""

PRESETS: dict[str, dict[str, object]] = {
    "tiny": {"layers": 2, "d_model": 64, "heads": 4, "kv_heads": 2, "d_ff": 192},
    "small": {"layers": 4, "d_model": 256, "heads": 4, "kv_heads": 2, "d_ff": 768},
    # Llama 3.2 1B
    "llama3-1b": {
        "layers": 16, "d_model": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "d_ff": 8192,
        "vocab_size": 128_256, "rope_theta": 500_000.0, "tied_embeddings": True,
    },
    # Meta-Llama-3-8B
    "llama3-8b": {
        "layers": 32, "d_model": 4096, "heads": 32, "kv_heads": 8, "d_ff": 14_336,
        "vocab_size": 128_256, "rope_theta": 500_000.0, "tied_embeddings": False,
    },
    # Meta-Llama-3-70B
    "llama3-70b": {
        "layers": 80, "d_model": 8192, "heads": 64, "kv_heads": 8, "d_ff": 28_672,
        "vocab_size": 128_256, "rope_theta": 500_000.0, "tied_embeddings": False,
    },
}  # fmt: skip
