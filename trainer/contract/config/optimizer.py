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
SCHEDULE_NUMBERS = {"learning_rate", "warmup_steps", "decay_steps", "final_fraction"}
"""Keys whose values are arguments of the compiled step, like the number of steps."""


class ParamGroup(Section):
    """Parameters with their own learning rate or weight decay."""

    pattern: Annotated[str, Field(min_length=1)] = Field(
        description="Glob of parameter names, such as `layers.*_norm.scale`."
    )
    learning_rate_factor: Annotated[float, Field(ge=0)] = Field(
        default=1.0, description="Multiplier of the learning rate for these parameters."
    )
    weight_decay: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="Weight decay of these parameters. null: the value that they would have "
        "without the group.",
    )


class Optimizer(Section):
    """The update rule, the learning-rate schedule and regularization."""

    name: Literal["adamw", "lion", "muon", "adafactor"] = Field(
        default="adamw",
        description="Update rule. `muon` updates the matrices of the layers; all other parameters "
        "use AdamW.",
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(
        default=3e-4, description="Peak learning rate."
    )
    schedule: Literal["cosine", "linear", "constant", "wsd"] = Field(
        default="cosine",
        description="Learning rate after warm-up: a `cosine` or `linear` decay over the run, "
        "`constant`, or `wsd` (constant, then linear in the last `decay_steps`).",
    )
    warmup_steps: NonNegative = Field(
        default=0, description="Number of steps in which the learning rate rises linearly."
    )
    decay_steps: Positive | None = Field(
        default=None,
        description="Number of steps of the final decay of `schedule: wsd`. null: a tenth of the "
        "run.",
    )
    final_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.1, description="Learning rate of the last step, as a fraction of the peak."
    )
    beta1: Fraction = Field(
        default=0.9,
        description="Decay rate of the mean of gradients in AdamW, and Lion's interpolation.",
    )
    beta2: Fraction = Field(
        default=0.95,
        description="Decay rate of the mean of squared gradients in AdamW, and of Lion's momentum.",
    )
    momentum: Fraction = Field(
        default=0.95, description="Decay rate of the momentum of Muon's matrices."
    )
    eps: Annotated[float, Field(gt=0)] = Field(
        default=1e-8, description="Constant that AdamW adds to the denominator of its update."
    )
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.1,
        description="Decoupled weight decay. It does not apply to biases and norm scales.",
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=1.0, description="Maximum global norm of the gradient. null: no clipping."
    )
    z_loss: Annotated[float, Field(ge=0)] = Field(
        default=0.0,
        description="Weight of the squared log of the softmax's normalizer, which keeps logits "
        "near zero (PaLM, arXiv:2204.02311). It affects gradients only.",
    )
    moments_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32", description="Dtype in which the optimizer's moments are stored."
    )
    offload_moments: bool = Field(
        default=False,
        description="Whether the moments are in the memory of the host. The devices copy them for "
        "the update, one parameter after the other.",
    )
    ema_decay: Fraction | None = Field(
        default=None,
        description="Decay rate of an exponential moving average of the weights, which is "
        "evaluated and exported in place of the weights. null: no average.",
    )
    param_groups: tuple[ParamGroup, ...] = Field(
        default=(),
        strict=False,
        description="Parameters with their own learning rate or weight decay. The first group "
        "that matches a parameter applies.",
    )

    @model_validator(mode="after")
    def _means_move(self) -> "Optimizer":
        """Rejects means that never change because every step is below bfloat16's rounding."""
        if self.moments_dtype == "bfloat16" and self.name == "adafactor":
            message = "Adafactor's means are small and change ever more slowly. Remove this key"
            raise KeyedError(("moments_dtype", message))
        kept = KEPT_MEANS[self.name]
        slow = [name for name in kept if getattr(self, name) > SLOWEST_BFLOAT16_MEAN]
        if self.moments_dtype == "bfloat16" and slow:
            raise KeyedError(
                *(
                    (name, f"a bfloat16 mean does not change above {SLOWEST_BFLOAT16_MEAN}. "
                     "Lower it, or set moments_dtype: float32")
                    for name in slow
                )
            )  # fmt: skip
        return self
