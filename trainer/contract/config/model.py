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
from trainer.contract.config.presets import PRESETS

GIVEN = ("vocab_size", "rngs")
"""Arguments that Slipway passes to a custom model."""


class RopeScaling(Section):
    """Extension of rotary positions beyond the length that the model was trained for."""

    kind: Literal["linear", "llama3"]
    factor: Annotated[float, Field(ge=1)]
    low_frequency_factor: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="of llama3: waves longer than trained_positions over it are slowed"
    )
    high_frequency_factor: Annotated[float, Field(gt=0)] = Field(
        default=4.0, description="of llama3: waves shorter than trained_positions over it stay"
    )
    trained_positions: Positive = Field(default=8192, description="of llama3")


class Experts(Section):
    """Mixture of experts: each token uses a few of `count` feed-forward parts."""

    count: Annotated[int, Field(ge=2)]
    per_token: Positive = 2
    capacity_factor: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="room of an expert in a sequence, over its even share; null: for all tokens",
    )
    balance_loss: Annotated[float, Field(ge=0)] = Field(
        default=0.01, description="weight of the loss that evens out the experts' tokens"
    )


def _drop_required(schema: dict[str, Any]) -> None:
    """Changes the JSON Schema: a preset, or other keys, can take the place of any key."""
    del schema["required"]


class Model(Section):
    """A decoder-only transformer; `preset` fills in keys that are not set."""

    model_config = ConfigDict(json_schema_extra=_drop_required)

    preset: Literal[tuple(PRESETS)] | None = None  # type: ignore[valid-type]
    layers: Positive
    d_model: Positive
    heads: Positive
    kv_heads: Positive
    head_dim: Positive
    d_ff: Positive
    vocab_size: Positive | None = Field(default=None, description="null: the tokenizer's")
    rope_theta: Annotated[float, Field(gt=0)] = 10_000.0
    rope_scaling: RopeScaling | None = None
    positions: Literal["rotary", "learned"] = "rotary"
    max_positions: Positive | None = Field(default=None, description="of positions: learned")
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    query_key_norm: bool = Field(default=False, description="of each head, before its positions")
    biases: Literal["none", "qkv", "all"] = "none"
    window: Positive | None = Field(default=None, description="positions that attention looks back")
    attention_soft_cap: Annotated[float, Field(gt=0)] | None = None
    feed_forward: Literal["swiglu", "geglu", "gelu"] = "swiglu"
    experts: Experts | None = None
    scaled_embedding: bool = Field(default=False, description="by the square root of d_model")
    tied_embeddings: bool = True
    logit_soft_cap: Annotated[float, Field(gt=0)] | None = None
    dropout: Fraction = 0.0
    scan_layers: bool = Field(
        default=True, description="false, and always on CPU: unroll the layers"
    )
    remat: Literal["none", "dots", "full"] = "none"
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"

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
        if isinstance(heads, int) and heads > 0 and isinstance(d_model, int):
            head_dim = max(d_model // heads, 1)
        model = check({"kv_heads": heads, "head_dim": head_dim, **filled})
        if "head_dim" not in filled and model.d_model % model.heads:
            message = f"{d_model} does not divide by {heads} heads; say head_dim, or change one"
            raise KeyedError(("d_model", message))
        return model


class OwnModel(Section):
    """A custom model, which only the trainer imports: see trainer/model/custom.py."""

    not_here: ClassVar[Mapping[str, str]] = dict.fromkeys(
        Model.model_fields,
        "belongs to the decoder, and this model is a module: what its function takes stands in "
        "model.args",
    )
    module: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$")] = Field(
        description="package.module:function, as the folder here or Python has it"
    )
    args: dict[str, Any] = Field(default={}, description="arguments of the function, by name")

    @field_validator("args")
    @classmethod
    def _leave_given_ones(cls, args: dict[str, Any]) -> dict[str, Any]:
        if taken := [name for name in GIVEN if name in args]:
            raise KeyedError(*((name, "Slipway gives it: leave it out") for name in taken))
        return args


def _kind(given: Any) -> str:
    is_own = isinstance(given, OwnModel) or (isinstance(given, dict) and "module" in given)
    return "own" if is_own else "decoder"


AnyModel = Annotated[
    Annotated[Model, Tag("decoder")] | Annotated[OwnModel, Tag("own")], Discriminator(_kind)
]
