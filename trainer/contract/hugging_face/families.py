"""Model families that Hugging Face has names for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import Model
from trainer.contract.config.model_parts import MixtureOfExperts

PLAIN: dict[str, Any] = {
    "norm": "rms", "positions": "rotary", "mlp": "swiglu", "biases": "none",
    "norm_position": "before", "qk_norm": False, "scale_embeddings": False,
    "sliding_window": False, "global_every": False, "local_rope_theta": False,
    "query_scale_dim": False, "attention_sinks": False, "moe": False, "attn_logit_softcap": False,
    "final_logit_softcap": False, "latent_attention": False,
    "moe.shared": False, "moe.dense_layers": False, "moe.is_biased": False,
}  # fmt: skip
"""Traits of a Llama. True and False state whether the model has a value."""

LLAMA_KEYS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "vocab_size": "vocab_size",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tied_embeddings",
}
LLAMA_DEFAULTS = {"rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
"""Defaults of `LlamaConfig` in transformers. `MixtralConfig` has others for the first two, but the
published files of Mixtral set them."""
SILU = {"hidden_act": ("silu",)}
NO_BIASES = {"attention_bias": (False,), "mlp_bias": (False,)}


EXPERTS = {"moe": True, "moe.scores": "softmax", "moe.weight_scale": 1.0, "moe.groups": 1}
"""Traits of a model whose router knows neither groups nor factors."""


GEMMA_TRAITS = {
    "mlp": "geglu", "scale_embeddings": True, "tied_embeddings": True, "norm_position": "both",
    "sliding_window": True, "global_every": True, "query_scale_dim": True,
}  # fmt: skip
"""Traits of Gemma from its second version on."""
GEMMA_KEYS = {
    **LLAMA_KEYS,
    "sliding_window": "sliding_window",
    "sliding_window_pattern": "global_every",
    "query_pre_attn_scalar": "query_scale_dim",
}
GEMMA_DEFAULTS = {
    **LLAMA_DEFAULTS,
    "tie_word_embeddings": True,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
GEMMA_FIXED = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "attention_bias": (False,),
    "use_bidirectional_attention": (False,),
}


DEEPSEEK_TRAITS = {
    "latent_attention": True, "moe": True, "moe.shared": True, "moe.dense_layers": True,
    # transformers normalizes latents with this number, whatever rms_norm_eps is.
    "norm_eps": 1e-6,
}  # fmt: skip
DEEPSEEK_KEYS = {
    **{key: ours for key, ours in LLAMA_KEYS.items() if key != "head_dim"},
    "q_lora_rank": "latent_attention.query_rank",
    "kv_lora_rank": "latent_attention.rank",
    "qk_nope_head_dim": "latent_attention.plain_dim",
    "qk_rope_head_dim": "latent_attention.rotary_dim",
    "v_head_dim": "latent_attention.value_dim",
    "intermediate_size": "moe.dense_d_ff",
    "moe_intermediate_size": "d_ff",
    "first_k_dense_replace": "moe.dense_layers",
    "n_routed_experts": "moe.count",
    "num_experts_per_tok": "moe.top_k",
    "n_shared_experts": "moe.shared",
    "n_group": "moe.groups",
    "topk_group": "moe.top_groups",
    "routed_scaling_factor": "moe.weight_scale",
}
DEEPSEEK_DEFAULTS = {
    **LLAMA_DEFAULTS, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}  # fmt: skip
DEEPSEEK_FIXED = {**SILU, "attention_bias": (False,), "moe_layer_freq": (1,)}


@dataclass(frozen=True)
class Family:
    """A `model_type` of Hugging Face, with the names that its files use."""

    kind: str
    architecture: str
    traits: Mapping[str, Any] = field(default_factory=dict)
    """Traits of the job's model that differ from a Llama's."""
    keys: Mapping[str, str] = field(default_factory=lambda: LLAMA_KEYS)
    """Key of config.json -> key of the job's model."""
    defaults: Mapping[str, Any] = field(default_factory=lambda: LLAMA_DEFAULTS)
    """Values of keys that config.json omits."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other name of a key in config.json -> its name here."""
    unnamed: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys of the job's model that no key of config.json has."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: {**SILU, **NO_BIASES})
    """Values that this trainer supports; the first applies when config.json omits the key."""

    @property
    def values(self) -> dict[str, Any]:
        """Values of the job's `model` that the family decides. Dotted keys are of its sections."""
        traits = {**PLAIN, **self.traits}
        named = {
            key: value
            for key, value in traits.items()
            if not isinstance(value, bool) or _is_flag(key)
        }
        return {**named, **self.unnamed}

    def unlike(self, model: Model) -> list[str]:
        """Returns the traits in which a model differs from this family."""
        return [
            f"model.{key}: {found}"
            for key, wanted in {**PLAIN, **self.traits}.items()
            if not _is(found := _value(model, key), wanted)
        ]


def _is_flag(key: str) -> bool:
    """Returns whether a dotted key of the job's `model` is true or false."""
    section, _, name = key.rpartition(".")
    fields = (MixtureOfExperts if section else Model).model_fields
    return name in fields and isinstance(fields[name].default, bool)


def _value(model: Model, key: str) -> Any:
    """Returns the value of a dotted key; None inside an absent section."""
    found: Any = model
    for part in key.split("."):
        found = getattr(found, part, None)
    return found


def _is(found: Any, wanted: Any) -> bool:
    return bool(found) == wanted if isinstance(wanted, bool) else found == wanted


FAMILIES = (
    Family("llama", "LlamaForCausalLM"),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        traits={"biases": "qkv"},
        fixed={**SILU, "use_sliding_window": (False,)},
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        traits={"qk_norm": True},
        fixed={**SILU, "attention_bias": (False,), "use_sliding_window": (False,)},
    ),
    Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        traits={"qk_norm": True, **EXPERTS},
        keys={
            **{key: ours for key, ours in LLAMA_KEYS.items() if key != "intermediate_size"},
            "moe_intermediate_size": "d_ff",
            "num_experts": "moe.count",
            "num_experts_per_tok": "moe.top_k",
            "norm_topk_prob": "moe.normalize_weights",
        },
        defaults={**LLAMA_DEFAULTS, "norm_topk_prob": False},
        # transformers 5 writes the number of experts by its new name.
        aliases={"num_local_experts": "num_experts"},
        fixed={
            **SILU,
            "attention_bias": (False,),
            "use_sliding_window": (False,),
            "decoder_sparse_step": (1,),
            "mlp_only_layers": ([],),
        },
    ),
    Family(
        "olmo2",
        "Olmo2ForCausalLM",
        traits={"norm_position": "after", "qk_norm": "full"},
        defaults={**LLAMA_DEFAULTS, "rms_norm_eps": 1e-5},
        fixed={**SILU, "attention_bias": (False,)},
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        traits={"sliding_window": True},
        keys={**LLAMA_KEYS, "sliding_window": "sliding_window"},
        fixed=SILU,
    ),
    Family(
        "mixtral",
        "MixtralForCausalLM",
        traits={**EXPERTS, "moe.normalize_weights": True},
        keys={
            **LLAMA_KEYS,
            "num_local_experts": "moe.count",
            "num_experts_per_tok": "moe.top_k",
        },
        fixed={**SILU, "sliding_window": (None,)},
    ),
    Family(
        "gemma",
        "GemmaForCausalLM",
        traits={"mlp": "geglu", "scale_embeddings": True, "tied_embeddings": True},
        defaults={**LLAMA_DEFAULTS, "tie_word_embeddings": True},
        # The first Gemma files have gelu, which transformers reads as gelu_pytorch_tanh.
        fixed={"hidden_act": ("gelu_pytorch_tanh", "gelu"), "attention_bias": (False,)},
    ),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        traits={**GEMMA_TRAITS, "attn_logit_softcap": True, "final_logit_softcap": True},
        keys={
            **GEMMA_KEYS,
            "attn_logit_softcapping": "attn_logit_softcap",
            "final_logit_softcapping": "final_logit_softcap",
        },
        defaults={
            **GEMMA_DEFAULTS,
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        fixed=GEMMA_FIXED,
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        traits={**GEMMA_TRAITS, "qk_norm": True, "local_rope_theta": True},
        keys={**GEMMA_KEYS, "rope_local_base_freq": "local_rope_theta"},
        defaults={
            **GEMMA_DEFAULTS,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
        fixed={
            **GEMMA_FIXED,
            "attn_logit_softcapping": (None,),
            "final_logit_softcapping": (None,),
        },
    ),
    Family(
        "gpt_oss",
        "GptOssForCausalLM",
        traits={
            "mlp": "clamped_swiglu", "biases": "all", "sliding_window": True, "global_every": True,
            "attention_sinks": True, **EXPERTS, "moe.normalize_weights": True,
        },
        keys={
            **LLAMA_KEYS,
            "sliding_window": "sliding_window",
            "sliding_window_pattern": "global_every",
            "num_local_experts": "moe.count",
            "num_experts_per_tok": "moe.top_k",
        },
        defaults={
            **LLAMA_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
        },
        fixed={
            **SILU,
            "attention_bias": (True,),
            "swiglu_alpha": (1.702,),
            "swiglu_limit": (7.0,),
        },
    ),
    Family(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        traits={
            **DEEPSEEK_TRAITS, "moe.scores": "softmax", "moe.normalize_weights": False,
        },
        keys=DEEPSEEK_KEYS,
        defaults={
            **DEEPSEEK_DEFAULTS, "first_k_dense_replace": 0, "n_shared_experts": 2, "n_group": 1,
            "topk_group": 1, "routed_scaling_factor": 1.0,
        },
        fixed={
            **DEEPSEEK_FIXED,
            "mlp_bias": (False,),
            "scoring_func": ("softmax",),
            "norm_topk_prob": (False,),
            # One group of all experts is what `greedy` means.
            "topk_method": ("group_limited_greedy", "greedy"),
        },
    ),
    Family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        traits={
            **DEEPSEEK_TRAITS, "moe.scores": "sigmoid", "moe.is_biased": True,
        },
        unnamed={"moe.bias_update_rate": 0.001},  # arXiv:2412.19437, section 4.2
        keys={**DEEPSEEK_KEYS, "norm_topk_prob": "moe.normalize_weights"},
        defaults={
            **DEEPSEEK_DEFAULTS, "first_k_dense_replace": 3, "n_shared_experts": 1, "n_group": 8,
            "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
        },
        fixed={
            **DEEPSEEK_FIXED,
            "scoring_func": ("sigmoid",),
            "topk_method": ("noaux_tc",),
            "rope_interleave": (True,),
            # transformers leaves out the layers for multi-token prediction, as exports do.
            "num_nextn_predict_layers": (0, 1),
        },
    ),
    Family(
        "gpt2",
        "GPT2LMHeadModel",
        traits={
            "norm": "layer", "positions": "learned", "mlp": "gelu", "biases": "all",
            "tied_embeddings": True,
        },
        keys={
            "n_embd": "d_model", "n_inner": "d_ff", "n_layer": "layers", "n_head": "heads",
            "n_positions": "max_positions", "vocab_size": "vocab_size",
            "layer_norm_epsilon": "norm_eps",
        },
        defaults={"layer_norm_epsilon": 1e-5},
        fixed={
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "tie_word_embeddings": (True,),
        },
    ),
)  # fmt: skip


def family(model: Model) -> Family:
    """Returns the family of a model. Raises ConfigError when there is none."""
    nearest = min(FAMILIES, key=lambda one: len(one.unlike(model)))
    if unlike := nearest.unlike(model):
        message = (
            f"Hugging Face has no model like this: the nearest is {nearest.kind}, which does not"
        )
        raise ConfigError([f"{message} support {', '.join(unlike)}"])
    return nearest
