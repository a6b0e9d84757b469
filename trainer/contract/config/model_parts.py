"""The sections of the job file's `model`."""

from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.config.base import NonNegative, Positive, Section


class RopeScaling(Section):
    """Extension of rotary positions beyond the length that the model was trained for."""

    kind: Literal["linear", "llama3", "yarn"] = Field(
        description="How frequencies are scaled: `linear` divides all of them by `factor`; "
        "`llama3` and `yarn` keep short waves and divide long ones."
    )
    factor: Annotated[float, Field(ge=1)] = Field(
        description="The largest divisor of a frequency: how many times longer the context becomes."
    )
    low_frequency_factor: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="Except with `kind: linear`, waves longer than `original_max_positions` "
        "divided by this are scaled by the whole `factor`: `beta_slow` of YaRN.",
    )
    high_frequency_factor: Annotated[float, Field(gt=0)] = Field(
        default=4.0,
        description="Except with `kind: linear`, waves shorter than `original_max_positions` "
        "divided by this are not scaled: `beta_fast` of YaRN, which has 32.",
    )
    original_max_positions: Positive = Field(
        default=8192,
        description="Except with `kind: linear`, the context length that the model was first "
        "trained for.",
    )
    truncate: bool = Field(
        default=False,
        description="With `kind: yarn`, whether the range of frequencies that are partly scaled "
        "begins and ends at whole ones (DeepSeek).",
    )
    mscale: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="With `kind: yarn` and `latent_attention`, attention scores are multiplied by "
        "(0.1 * `mscale` * ln(`factor`) + 1)^2: `mscale` and `mscale_all_dim` of DeepSeek. null: "
        "rotated queries and keys are multiplied by 0.1 * ln(`factor`) + 1.",
    )


class LatentAttention(Section):
    """Multi-head latent attention: keys and values of all heads are products of one latent."""

    rank: Positive = Field(description="Width of the latent of keys and values.")
    query_rank: Positive | None = Field(
        default=None,
        description="Width of the latent of queries. null: they are products of the residual "
        "stream.",
    )
    plain_dim: Positive = Field(
        description="Width of the part of a head's queries and keys without positions."
    )
    rotary_dim: Positive = Field(
        description="Width of the part that is rotated by positions. All heads share its keys."
    )
    value_dim: Positive = Field(description="Width of a head's values.")


class MixtureOfExperts(Section):
    """Mixture of experts: a router sends each token to a few of the experts, which are MLPs."""

    count: Annotated[int, Field(ge=2)] = Field(description="Number of experts in each layer.")
    top_k: Positive = Field(default=2, description="Number of experts that each token uses.")
    capacity_factor: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Limit on the tokens of a sequence that an expert takes, as a multiple of an "
        "even split. Tokens beyond it skip that expert. null: no limit.",
    )
    normalize_weights: bool = Field(
        default=True,
        description="Whether the weights of a token's experts add up to one, before "
        "`weight_scale`: a softmax is then over the chosen experts, as in Mixtral. `false`: it is "
        "over all experts.",
    )
    scores: Literal["softmax", "sigmoid"] = Field(
        default="softmax",
        description="How the router's logits become weights: `softmax`, or `sigmoid` of each "
        "alone (DeepSeek-V3).",
    )
    weight_scale: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="Factor of the weights of a token's experts (DeepSeek)."
    )
    groups: Positive = Field(
        default=1,
        description="Number of groups of experts. A token uses experts of its best "
        "`top_groups` groups only (DeepSeek-V2): those with the largest score, or, with `scores: "
        "sigmoid`, the largest sum of two.",
    )
    top_groups: Positive = Field(
        default=1, description="Number of groups that the experts of a token come from."
    )
    bias_update_rate: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="Each expert has a bias that is added to its score when experts are chosen, "
        "not to its weight. After a step, this number is added to the bias of experts with less "
        "than the mean number of tokens, and subtracted from the others' (arXiv:2408.15664). "
        "null: no biases.",
    )
    shared: NonNegative = Field(
        default=0,
        description="Number of experts that every token uses, besides those that it chooses.",
    )
    dense_layers: NonNegative = Field(
        default=0, description="Number of first layers that have an MLP in place of experts."
    )
    dense_d_ff: Positive | None = Field(
        default=None, description="Hidden width of the MLP of `dense_layers`, which need this key."
    )
    load_balance_loss_weight: Annotated[float, Field(ge=0)] = Field(
        default=0.01,
        description="Weight of the load-balancing loss of the Switch Transformer "
        "(arXiv:2101.03961). It affects gradients only, not the reported loss.",
    )

    @property
    def is_biased(self) -> bool:
        """Whether biases take part in the choice of experts."""
        return self.bias_update_rate is not None
