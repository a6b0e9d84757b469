"""The job file's `optimizer`: the update rule and its schedule."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.contract.config.base import Fraction, NonNegative, Positive, Section
from trainer.contract.config.errors import KeyedError

SLOWEST_BFLOAT16_MEAN = 0.996
"""Largest decay rate of a bfloat16 mean: with 8 bits a number changes by 1/256 or not at all."""
KEPT_MEANS = {
    "adamw": ("beta1", "beta2"), "lion": ("beta2",), "muon": ("momentum", "beta1", "beta2"),
    "adafactor": (),
}  # fmt: skip
"""Keys of the decay rates of each optimizer's means."""


class Group(Section):
    """Parameters with their own learning rate or weight decay."""

    pattern: Annotated[str, Field(min_length=1)] = Field(
        description="of their names, such as layers.*_norm.scale"
    )
    learning_rate_factor: Annotated[float, Field(ge=0)] = 1.0
    weight_decay: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="null: as without the group"
    )


class Optimizer(Section):
    name: Literal["adamw", "lion", "muon", "adafactor"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 3e-4
    schedule: Literal["cosine", "linear", "constant", "wsd"] = Field(
        default="cosine", description="wsd: warm up, stay, and fall in the last decay_steps"
    )
    warmup_steps: NonNegative = 0
    decay_steps: Positive | None = Field(
        default=None, description="of schedule: wsd; null: a tenth of the run"
    )
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.1
    beta1: Fraction = 0.9
    beta2: Fraction = 0.95
    momentum: Fraction = Field(default=0.95, description="of muon's matrices; the rest is adamw's")
    eps: Annotated[float, Field(gt=0)] = Field(default=1e-8, description="of adamw")
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    clip_norm: Annotated[float, Field(gt=0)] | None = 1.0
    z_loss: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="how much the squared log of the softmax's sum counts"
    )
    moments_dtype: Literal["float32", "bfloat16"] = "float32"
    ema: Fraction | None = Field(
        default=None, description="of a mean of the weights, which is then evaluated and exported"
    )
    groups: tuple[Group, ...] = Field(
        default=(), strict=False, description="of those that match a parameter the first counts"
    )

    @model_validator(mode="after")
    def _means_move(self) -> "Optimizer":
        """Rejects means that never change because every step is below bfloat16's rounding."""
        if self.moments_dtype == "bfloat16" and self.name == "adafactor":
            message = "adafactor's means move ever more slowly, and are small: leave it out"
            raise KeyedError(("moments_dtype", message))
        kept = KEPT_MEANS[self.name]
        slow = [name for name in kept if getattr(self, name) > SLOWEST_BFLOAT16_MEAN]
        if self.moments_dtype == "bfloat16" and slow:
            raise KeyedError(
                *(
                    (name, f"above {SLOWEST_BFLOAT16_MEAN} a mean in bfloat16 no longer moves: "
                     "take less, or moments_dtype: float32")
                    for name in slow
                )
            )  # fmt: skip
        return self
