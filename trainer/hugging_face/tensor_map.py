"""Mapping of each parameter to the tensors of Hugging Face's models."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
MLP_KERNELS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
POST_NORMS = {
    "attention_post_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
EXPERT = {"gate": "w1", "up": "w3", "down": "w2"}


@dataclass(frozen=True)
class TensorMapping:
    """The mapping of a parameter to a tensor; without `inputs` the tensor has one dim."""

    tensor: str
    """Name of the tensor; stacked parameters have `{layer}` and `{expert}` in it."""
    inputs: int = 0
    """Number of the parameter's leading dims that are inputs."""
    inputs_first: bool = False
    part: int = 0
    parts: int = 1
    """Number of parameters that share the tensor's outputs."""
    interleaved: bool = False
    """Whether the outputs of the parts alternate instead of following each other."""
    has_experts: bool = False
    """Whether the first dim of the tensor is the expert."""
    offset: float = 0.0
    """Value to add to the tensor to get the parameter."""


TensorMap = Mapping[str, TensorMapping]
"""Mappings by the parameter's name."""


def _llama() -> TensorMap:
    """Returns Llama's mappings, and those of other families: biases, query and key norms."""
    mappings = {
        "embedding.table": TensorMapping("model.embed_tokens.weight", 1, inputs_first=True),
        "final_norm.scale": TensorMapping("model.norm.weight"),
        "output.kernel": TensorMapping("lm_head.weight", 1),
    }
    ours, theirs = "layers.", "model.layers.{layer}."
    mappings |= _norms(
        {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    )
    for part, name in ATTENTION.items():
        inputs = 2 if part == "output" else 1
        mappings[f"{ours}attention.{part}.kernel"] = TensorMapping(
            f"{theirs}self_attn.{name}.weight", inputs
        )
        mappings[f"{ours}attention.{part}.bias"] = TensorMapping(f"{theirs}self_attn.{name}.bias")
    for part, name in {"query": "q_norm", "key": "k_norm"}.items():
        mappings[f"{ours}attention.{part}_norm.scale"] = TensorMapping(
            f"{theirs}self_attn.{name}.weight"
        )
    for part, name in MLP_KERNELS.items():
        mappings[f"{ours}mlp.{part}.kernel"] = TensorMapping(f"{theirs}mlp.{name}.weight", 1)
    return mappings


def _with_experts(module: str, names: Mapping[str, str]) -> TensorMap:
    """Returns Llama's mappings with experts, by the names of their module and its matrices."""
    ours, theirs = "layers.mlp.", f"model.layers.{{layer}}.{module}."
    mappings = {**LLAMA, f"{ours}router.kernel": TensorMapping(f"{theirs}gate.weight", 1)}
    for part, name in names.items():
        tensor = f"{theirs}experts.{{expert}}.{name}.weight"
        mappings[f"{ours}{part}.kernel"] = TensorMapping(tensor, 1)
    return mappings


def _norms(names: Mapping[str, str]) -> TensorMap:
    """Returns the mappings of a layer's norms, by their names here and there."""
    return {
        f"layers.{norm}.scale": TensorMapping(f"model.layers.{{layer}}.{name}.weight")
        for norm, name in names.items()
    }


def _gemma(norms: Mapping[str, str]) -> TensorMap:
    """Returns Gemma's mappings, by the names of norms that differ from Llama's.

    Its tensors store norm scales minus one.
    """
    return {
        name: replace(mapping, offset=1.0) if name.endswith("_norm.scale") else mapping
        for name, mapping in {**LLAMA, **_norms(norms)}.items()
    }


def _gpt_oss() -> TensorMap:
    """Returns gpt-oss's mappings: a tensor has all experts of a layer, with inputs first."""
    ours, theirs = "layers.mlp.", "model.layers.{layer}.mlp."
    mappings = {
        **LLAMA,
        "layers.attention.sinks": TensorMapping("model.layers.{layer}.self_attn.sinks"),
        f"{ours}router.kernel": TensorMapping(f"{theirs}router.weight", 1),
        f"{ours}router.bias": TensorMapping(f"{theirs}router.bias"),
    }
    both = {"parts": 2, "interleaved": True}
    for part, name, options in (
        ("gate", "gate_up_proj", {"part": 0, **both}),
        ("up", "gate_up_proj", {"part": 1, **both}),
        ("down", "down_proj", {}),
    ):
        tensor = f"{theirs}experts.{name}"
        mapping = TensorMapping(tensor, 1, inputs_first=True, has_experts=True, **options)
        mappings[f"{ours}{part}.kernel"] = mapping
        mappings[f"{ours}{part}.bias"] = replace(mapping, tensor=f"{tensor}_bias", inputs=0)
    return mappings


def _deepseek() -> TensorMap:
    """Returns the mappings of DeepSeek-V2 and V3: latents, experts, and dense layers before."""
    theirs = "model.layers.{layer}."
    attention, experts = f"{theirs}self_attn.", f"{theirs}mlp."
    of_layers = {
        "attention.query_down.kernel": TensorMapping(f"{attention}q_a_proj.weight", 1),
        "attention.query_norm.scale": TensorMapping(f"{attention}q_a_layernorm.weight"),
        "attention.query_up.kernel": TensorMapping(f"{attention}q_b_proj.weight", 1),
        "attention.key_value_down.kernel": TensorMapping(
            f"{attention}kv_a_proj_with_mqa.weight", 1
        ),
        "attention.key_value_norm.scale": TensorMapping(f"{attention}kv_a_layernorm.weight"),
        "attention.key_value_up.kernel": TensorMapping(f"{attention}kv_b_proj.weight", 1),
        "mlp.balancing_bias": TensorMapping(f"{experts}gate.e_score_correction_bias"),
    }
    for part, name in MLP_KERNELS.items():
        shared = f"{experts}shared_experts.{name}.weight"
        of_layers[f"mlp.shared.{part}.kernel"] = TensorMapping(shared, 1)
    ours = "layers."
    latent = {f"{ours}{name}": mapping for name, mapping in of_layers.items()}
    dense = {
        f"dense_{name}": mapping
        for name, mapping in {**LLAMA, **latent}.items()
        if name.startswith(ours)
    }
    return {**QWEN3_MOE, **latent, **dense}


def _gpt2() -> TensorMap:
    """Returns GPT-2's mappings: inputs are first; queries, keys and values share a kernel."""
    prefix = "transformer."
    ours, theirs = "layers.", prefix + "h.{layer}."
    mappings = {
        "embedding.table": TensorMapping(f"{prefix}wte.weight", 1, inputs_first=True),
        "positions.table": TensorMapping(f"{prefix}wpe.weight", 1, inputs_first=True),
    }
    norms = {
        "final_norm": f"{prefix}ln_f",
        f"{ours}attention_norm": f"{theirs}ln_1",
        f"{ours}mlp_norm": f"{theirs}ln_2",
    }
    for name, tensor in norms.items():
        mappings[f"{name}.scale"] = TensorMapping(f"{tensor}.weight")
        mappings[f"{name}.bias"] = TensorMapping(f"{tensor}.bias")
    projections = {
        "attention.query": TensorMapping("attn.c_attn", 1, part=0, parts=3),
        "attention.key": TensorMapping("attn.c_attn", 1, part=1, parts=3),
        "attention.value": TensorMapping("attn.c_attn", 1, part=2, parts=3),
        "attention.output": TensorMapping("attn.c_proj", 2),
        "mlp.up": TensorMapping("mlp.c_fc", 1),
        "mlp.down": TensorMapping("mlp.c_proj", 1),
    }
    for name, mapping in projections.items():
        tensor = theirs + mapping.tensor
        mappings[f"{ours}{name}.kernel"] = replace(
            mapping, tensor=f"{tensor}.weight", inputs_first=True
        )
        mappings[f"{ours}{name}.bias"] = replace(mapping, tensor=f"{tensor}.bias", inputs=0)
    return mappings


LLAMA = _llama()
MIXTRAL, QWEN3_MOE = _with_experts("block_sparse_moe", EXPERT), _with_experts("mlp", MLP_KERNELS)
OLMO2, GPT2 = {**LLAMA, **_norms(POST_NORMS)}, _gpt2()
"""OLMo 2 has norms of outputs only."""
GPT_OSS, DEEPSEEK = _gpt_oss(), _deepseek()
GEMMA, GEMMA2 = _gemma({}), _gemma({**POST_NORMS, "mlp_norm": "pre_feedforward_layernorm"})

OTHERS: Mapping[str, TensorMap] = {
    "qwen3_moe": QWEN3_MOE, "olmo2": OLMO2, "mixtral": MIXTRAL, "gemma": GEMMA, "gemma2": GEMMA2,
    "gemma3_text": GEMMA2, "gpt_oss": GPT_OSS, "deepseek_v2": DEEPSEEK, "deepseek_v3": DEEPSEEK,
    "gpt2": GPT2,
}  # fmt: skip
"""Mappings of the families whose tensors have other names than Llama's, by `model_type`."""
