"""The job file's `model`: the kinds and sizes of a decoder, or the location of a custom model."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    field_validator,
    model_validator,
)

from trainer.contract.config.base import Fraction, Positive, Section
from trainer.contract.config.errors import KeyedError
from trainer.contract.config.model_parts import LatentAttention, MixtureOfExperts, RopeScaling
from trainer.contract.config.presets import PRESETS

Precision = Literal["int8", "fp8"]
"""Formats of matrix products that are narrower than every compute dtype."""

REMATERIALIZING = ("dots", "attention", "full")
"""Rematerialization policies that compute activations again, which rounds and offload need."""
REPEATING_PRODUCTS = ("attention", "full")
"""Those that also compute the products with weights again."""

Offloaded = Literal["layer_input", "qkv", "attention_output", "mlp_hidden"]
"""Activations of a layer that the memory of the host can keep."""

GIVEN = ("vocab_size", "rngs")
"""Arguments that Slipway passes to a custom model."""


def _drop_required(schema: dict[str, Any]) -> None:
    """Changes the JSON Schema: a preset, or other keys, can take the place of any key."""
    del schema["required"]


class Model(Section):
    """A decoder-only transformer; `preset` fills in keys that are not set."""

    model_config = ConfigDict(json_schema_extra=_drop_required)

    preset: Literal[tuple(PRESETS)] | None = Field(  # type: ignore[valid-type]
        default=None,
        description="Name of a published shape that fills in the keys of `model` that are not set.",
    )
    layers: Positive = Field(description="Number of layers.")
    d_model: Positive = Field(description="Width of the residual stream.")
    heads: Positive = Field(description="Number of query heads in each layer.")
    kv_heads: Positive = Field(
        description="Number of key/value heads, which divides `heads` (grouped-query attention, "
        "arXiv:2305.13245). Defaults to `heads`."
    )
    head_dim: Positive = Field(
        description="Width of a head's queries and keys, and of its values except with "
        "`latent_attention`, whose two widths it then adds up. Defaults to `d_model` divided by "
        "`heads`."
    )
    d_ff: Positive = Field(description="Hidden width of the MLP, or of each expert.")
    vocab_size: Positive | None = Field(
        default=None, description="Number of tokens of the vocabulary. null: the tokenizer's size."
    )
    rope_theta: Annotated[float, Field(gt=0)] = Field(
        default=10_000.0,
        description="Base of the rotary frequencies (arXiv:2104.09864); larger for long contexts.",
    )
    rope_scaling: RopeScaling | None = Field(
        default=None,
        description="Scaling of rotary positions for a longer context. null: no scaling.",
    )
    positions: Literal["rotary", "learned"] = Field(
        default="rotary",
        description="Position encoding: `rotary`, or `learned` with one vector per position.",
    )
    max_positions: Positive | None = Field(
        default=None,
        description="Number of learned positions, which `positions: learned` requires.",
    )
    norm: Literal["rms", "layer"] = Field(
        default="rms", description="Normalization: `rms` (RMSNorm) or `layer` (LayerNorm)."
    )
    norm_eps: Annotated[float, Field(gt=0)] = Field(
        default=1e-5, description="Constant that normalization adds to the variance."
    )
    norm_position: Literal["before", "after", "both"] = Field(
        default="before",
        description="Where attention and the MLP have a norm: `before` on their input, `after` on "
        "their output, before it is added to the residual stream (OLMo 2), or `both` (Gemma 2).",
    )
    qk_norm: bool | Literal["full"] = Field(
        default=False,
        description="Whether queries and keys are normalized before positions are applied: `true` "
        "each head alone, `full` all heads of a position together (OLMo 2).",
    )
    biases: Literal["none", "qkv", "all"] = Field(
        default="none",
        description="Projections that have a bias: `none`, `qkv` (queries, keys and values) or "
        "`all`, the router and the experts included.",
    )
    sliding_window: Positive | None = Field(
        default=None,
        description="Number of positions that attention covers, the token's own included. null: "
        "all earlier positions.",
    )
    global_every: Annotated[int, Field(ge=2)] | None = Field(
        default=None,
        description="Every layer of this number attends to all earlier positions instead of the "
        "sliding window: with 2, the second, the fourth and so on. null: none does.",
    )
    local_rope_theta: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Base of the rotary frequencies, without `rope_scaling`, in layers with a "
        "sliding window (Gemma 3). null: as in the other layers.",
    )
    attention_sinks: bool = Field(
        default=False,
        description="Whether each head has a learned score that takes part in the softmax and has "
        "no value (gpt-oss).",
    )
    latent_attention: LatentAttention | None = Field(
        default=None,
        description="Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434), in which the "
        "heads' keys and values are products of a narrow latent. null: they are of the residual "
        "stream.",
    )
    query_scale_dim: Positive | None = Field(
        default=None,
        description="Attention scores are divided by the square root of this number. null: of "
        "`head_dim`.",
    )
    attn_logit_softcap: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Bound on attention scores, applied as cap * tanh(score / cap). null: none.",
    )
    mlp: Literal["swiglu", "geglu", "gelu", "clamped_swiglu"] = Field(
        default="swiglu",
        description="Kind of MLP: `swiglu` or `geglu` with a gate (arXiv:2002.05202), `gelu` "
        "without one, or `clamped_swiglu`, the gate of gpt-oss.",
    )
    moe: MixtureOfExperts | None = Field(
        default=None,
        description="Mixture of experts that replaces the MLP of the layers. null: a dense model.",
    )
    scale_embeddings: bool = Field(
        default=False,
        description="Whether embeddings are multiplied by the square root of `d_model`, as in "
        "Gemma.",
    )
    tied_embeddings: bool = Field(
        default=True, description="Whether the output projection is the embedding table."
    )
    final_logit_softcap: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Bound on output logits, applied as cap * tanh(logit / cap). null: none.",
    )
    dropout: Fraction = Field(
        default=0.0,
        description="Probability that an element of the embeddings, or of the output of attention "
        "or the MLP, is zeroed in training.",
    )
    scan_layers: bool = Field(
        default=True,
        description="Whether the layers are compiled once and run in a loop. `false` unrolls them, "
        "as always on CPU devices.",
    )
    remat: Literal["none", "dots", "attention", "full"] = Field(
        default="none",
        description="Activations that the backward pass recomputes: `none`, all but matrix "
        "products and the results of an attention kernel (`dots`), all but the latter "
        "(`attention`), or all of a layer (`full`).",
    )
    offload: tuple[Offloaded, ...] = Field(
        default=(),
        strict=False,
        description="Activations that the backward pass reads from the memory of the host, with "
        "any `remat` but `none`. Each is one of `layer_input`, `qkv` (the products of queries, "
        "keys and values), `attention_output` and `mlp_hidden` (the MLP's products before its "
        "activation).",
    )
    compute_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="Dtype of the forward and backward pass; parameters stay in float32. `auto`: "
        "bfloat16 on accelerators, float32 on CPU devices.",
    )
    precision: Precision | None = Field(
        default=None,
        description="Format of the layers' products with weights in both passes, with a scale per "
        "channel: `int8`, or `fp8` (E4M3, and E5M2 for gradients). The output layer, the router "
        "and attention's products of queries, keys and values keep the compute dtype. null: all "
        "products do.",
    )

    @property
    def value_dim(self) -> int:
        """Width of a head's values."""
        return self.latent_attention.value_dim if self.latent_attention else self.head_dim

    @property
    def layer_period(self) -> int:
        """Number of layers after which the kinds of layers repeat."""
        return self.global_every or 1

    def window_of(self, layer: int) -> int | None:
        """Returns the sliding window of a layer, which counts from 0; None: all positions."""
        is_global = self.global_every is not None and (layer + 1) % self.global_every == 0
        return None if is_global else self.sliding_window

    @model_validator(mode="wrap")
    @classmethod
    def _fill_in(cls, given: Any, check: ModelWrapValidatorHandler["Model"]) -> "Model":
        """Fills in preset values, and derives `kv_heads` and `head_dim` when they are not set.

        A value derived from a wrong one stays wrong: the loader reports only what the user wrote.
        """
        if not isinstance(given, dict):
            return check(given)
        preset = given.get("preset")
        below = PRESETS.get(preset, PRESETS["tiny"]) if isinstance(preset, str) else {}
        filled: dict[str, Any] = {**below, **given}
        heads, d_model, head_dim = filled.get("heads"), filled.get("d_model"), None
        latent = filled.get("latent_attention")
        if isinstance(latent, dict):
            head_dim = _sum(latent.get("plain_dim"), latent.get("rotary_dim"))
        elif isinstance(heads, int) and heads > 0 and isinstance(d_model, int):
            head_dim = max(d_model // heads, 1)
        model = check({"kv_heads": heads, "head_dim": head_dim, **filled})
        is_derived = "head_dim" not in filled and model.latent_attention is None
        if is_derived and model.d_model % model.heads:
            message = (
                f"{d_model} is not divisible by {heads} heads. Set head_dim, or change one of them"
            )
            raise KeyedError(("d_model", message))
        return model


def _sum(*widths: Any) -> int | None:
    return sum(widths) if all(isinstance(width, int) for width in widths) else None


class CustomModel(Section):
    """A custom model, which only the trainer imports: see trainer/model/custom.py."""

    not_here: ClassVar[Mapping[str, str]] = dict.fromkeys(
        Model.model_fields,
        "belongs to the built-in decoder, and this job has a custom model (model.module). Put the "
        "arguments of its function in model.args",
    )
    module: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")] = Field(
        description="Function that builds the model, as `package.module:function`, importable "
        "from the working directory or the Python environment."
    )
    args: dict[str, Any] = Field(default={}, description="Keyword arguments of the function.")

    @field_validator("args")
    @classmethod
    def _leave_given_ones(cls, args: dict[str, Any]) -> dict[str, Any]:
        if taken := [name for name in GIVEN if name in args]:
            raise KeyedError(
                *((name, "Slipway passes this argument itself. Remove it") for name in taken)
            )
        return args


def _kind(given: Any) -> str:
    is_custom = isinstance(given, CustomModel) or (isinstance(given, dict) and "module" in given)
    return "custom" if is_custom else "decoder"


AnyModel = Annotated[
    Annotated[Model, Tag("decoder")] | Annotated[CustomModel, Tag("custom")], Discriminator(_kind)
]
