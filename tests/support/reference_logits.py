# /// script
# requires-python = ">=3.11"
# dependencies = ["torch", "transformers>=5", "safetensors", "numpy"]
# ///
"""Logits that Hugging Face's own code gives for small models, as JSON on standard output.

For tests/integration/trainer/reference_logits.json:

    uv run --script tests/support/reference_logits.py > reference_logits.json

The weights are made from their names alone: `test_families.py` makes the same ones.
"""

import json
import sys
import tempfile
import zlib
from importlib import import_module

import numpy as np
from safetensors.numpy import load_file, save_file

TOKENS = [5, 0, 3, 3, 60, 17, 42, 8, 9, 1, 33, 20]
SHAPE = {"vocab_size": 257, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {
    **SHAPE,
    "intermediate_size": 24,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "beta_fast": 8.0,
    "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 64,
}  # fmt: skip
GEMMA = {
    "sliding_window": 5, "query_pre_attn_scalar": 12, "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip


DEEPSEEK = {
    **{key: value for key, value in LLAMA.items() if key != "head_dim"},
    "num_key_value_heads": 4, "num_hidden_layers": 3, "rms_norm_eps": 1e-6,
    "intermediate_size": 40, "moe_intermediate_size": 24, "first_k_dense_replace": 1,
    "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "rope_parameters": {**YARN, "truncate": True, "mscale": 0.7, "mscale_all_dim": 0.7},
}  # fmt: skip
GROUPED = {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 1.5}


def alternating(layers: int) -> list[str]:
    """Kinds of layers, of which every second attends to all positions."""
    return (["sliding_attention", "full_attention"] * layers)[:layers]


CONFIGS = {
    "llama": {**LLAMA, "rope_parameters": LLAMA3},
    "qwen2": {**LLAMA, "rope_parameters": ROPE},
    "qwen3": {**LLAMA, "rope_parameters": ROPE, "tie_word_embeddings": True},
    "mixtral": {
        **LLAMA, "rope_parameters": ROPE, "num_local_experts": 4, "num_experts_per_tok": 2,
    },
    "qwen3_moe": {
        **LLAMA, "rope_parameters": ROPE, "moe_intermediate_size": 24, "num_experts": 4,
        "num_experts_per_tok": 2, "norm_topk_prob": False,
    },
    "olmo2": {**LLAMA, "rope_parameters": ROPE},
    "mistral": {**LLAMA, "rope_parameters": ROPE, "sliding_window": 5},
    "gemma": {**LLAMA, "rope_parameters": ROPE, "tie_word_embeddings": True},
    "gemma2": {
        **LLAMA, **GEMMA, "rope_parameters": ROPE, "num_hidden_layers": 3,
        "layer_types": alternating(3),
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        **LLAMA, **GEMMA, "num_hidden_layers": 5, "layer_types": alternating(5),
        "rope_theta": 10_000.0, "rope_local_base_freq": 100.0,
    },
    "gpt_oss": {
        **LLAMA, "rope_parameters": YARN, "num_local_experts": 4, "num_experts_per_tok": 2,
        "sliding_window": 5, "num_hidden_layers": 3, "layer_types": alternating(3),
    },
    "deepseek_v2": {
        **DEEPSEEK, **GROUPED, "q_lora_rank": 20, "v_head_dim": 6,
        "topk_method": "group_limited_greedy",
    },
    "deepseek_v2_lite": {
        **DEEPSEEK, "model_type": "deepseek_v2", "q_lora_rank": None, "v_head_dim": 8,
        "topk_method": "greedy", "n_shared_experts": 1, "routed_scaling_factor": 1.0,
    },
    "deepseek_v3": {
        **DEEPSEEK, **GROUPED, "q_lora_rank": 20, "v_head_dim": 6, "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
    },
    "gpt2": {
        "vocab_size": 257, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24,
        "n_positions": 48, "layer_norm_epsilon": 1e-5,
    },
}  # fmt: skip


def weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Of a tensor: numbers between -0.5 and 0.5; norms' are around one."""
    draw = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    numbers = draw.random(shape, np.float32) - np.float32(0.5)
    return numbers + np.float32(1) if "norm" in name or "ln_" in name else numbers


def main() -> None:
    torch, transformers = import_module("torch"), import_module("transformers")
    logits = {}
    for kind, config in CONFIGS.items():
        named = {"model_type": kind, **config}
        made = transformers.AutoConfig.for_model(named.pop("model_type"), **named)
        with tempfile.TemporaryDirectory() as folder:
            model = transformers.AutoModelForCausalLM.from_config(made)
            model.save_pretrained(folder)
            file = f"{folder}/model.safetensors"
            ours = {name: weights(name, old.shape) for name, old in load_file(file).items()}
            save_file(ours, file, metadata={"format": "pt"})
            model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        with torch.no_grad():
            found = model(torch.tensor([TOKENS])).logits[0].numpy()
        logits[kind] = [[round(float(x), 5) for x in row[::16]] for row in found[::3]]
    json.dump(logits, sys.stdout)
    print()


if __name__ == "__main__":
    main()
