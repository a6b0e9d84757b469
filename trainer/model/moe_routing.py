"""The choice of experts: which ones a token uses, with which weights.

The letters of dims are those of trainer/model/__init__.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from trainer.contract.config.model_parts import MixtureOfExperts


class Balance(NamedTuple):
    """How evenly the experts are used: of a layer, or of all layers."""

    loss: jax.Array
    """Load-balancing loss of each sequence (B,), 1 when the experts are used evenly."""
    load: jax.Array | None
    """Number of choices of each expert, the last dim; None without biases that balance them."""


class Choices(NamedTuple):
    """The experts of each token, (B, S, k)."""

    experts: jax.Array
    weights: jax.Array
    """In float32."""
    balance: Balance
    """Its load is (B, E)."""


def choose(settings: MixtureOfExperts, logits_BSE: jax.Array, bias_E: jax.Array | None) -> Choices:
    """Chooses the `top_k` experts with the largest scores, from the best groups of experts.

    `bias_E` is added to the scores for the choice only.

    References:
        Groups: DeepSeek-V2, section 2.2.2, https://arxiv.org/abs/2405.04434
        Sigmoid and biases: DeepSeek-V3, section 2.1.2, https://arxiv.org/abs/2412.19437
    """
    # A softmax has the order of its logits.
    scores_BSE = jax.nn.sigmoid(logits_BSE) if settings.scores == "sigmoid" else logits_BSE
    ranked_BSE = scores_BSE if bias_E is None else scores_BSE + jax.lax.stop_gradient(bias_E)
    if settings.groups > 1:
        ranked_BSE = _in_best_groups(settings, ranked_BSE)
    chosen_BSk, experts_BSk = jax.lax.top_k(ranked_BSE, settings.top_k)
    if bias_E is not None:
        chosen_BSk = jnp.take_along_axis(scores_BSE, experts_BSk, axis=-1)
    weights_BSk = settings.weight_scale * _weights(settings, chosen_BSk, logits_BSE)
    experts_BN = experts_BSk.reshape(len(experts_BSk), -1)
    loss_B = _load_balance_loss(settings, logits_BSE, experts_BN)
    load_BE = None if bias_E is None else jnp.sum(_is_chosen(settings, experts_BN), axis=1)
    return Choices(experts_BSk, weights_BSk, Balance(loss_B, load_BE))


def _in_best_groups(settings: MixtureOfExperts, ranked_BSE: jax.Array) -> jax.Array:
    """Returns the scores of experts in the `top_groups` best groups, and -inf for the others."""
    groups_BSJe = ranked_BSE.reshape(*ranked_BSE.shape[:2], settings.groups, -1)
    counted = 2 if settings.scores == "sigmoid" else 1
    best_BSJe, _ = jax.lax.top_k(groups_BSJe, counted)
    _, chosen_BSj = jax.lax.top_k(jnp.sum(best_BSJe, axis=-1), settings.top_groups)
    is_best_BSJ = jnp.any(chosen_BSj[..., None] == jnp.arange(settings.groups), axis=2)
    return jnp.where(is_best_BSJ[..., None], groups_BSJe, -jnp.inf).reshape(ranked_BSE.shape)


def _weights(settings: MixtureOfExperts, chosen_BSk: jax.Array, logits_BSE: jax.Array) -> jax.Array:
    if settings.scores == "sigmoid":
        if not settings.normalize_weights:
            return chosen_BSk
        return chosen_BSk / jnp.sum(chosen_BSk, axis=-1, keepdims=True)
    if settings.normalize_weights:
        return jax.nn.softmax(chosen_BSk, axis=-1)
    return jnp.exp(chosen_BSk - jax.nn.logsumexp(logits_BSE, -1, keepdims=True))


def _load_balance_loss(
    settings: MixtureOfExperts, logits_BSE: jax.Array, experts_BN: jax.Array
) -> jax.Array:
    """Returns the load-balancing loss of each sequence (B,), 1 when the experts are used evenly.

    It is E times the sum over experts of share of choices times mean probability, for one sequence.

    References:
        Switch Transformers, equation 4, over a batch and with one choice per token:
        https://arxiv.org/abs/2101.03961
        Of sigmoids: DeepSeek-V3, equations 17 to 20, https://arxiv.org/abs/2412.19437
    """
    share_BE = jnp.mean(_is_chosen(settings, experts_BN), axis=1)
    if settings.scores == "sigmoid":
        scores_BSE = jax.nn.sigmoid(logits_BSE)
        probability_BSE = scores_BSE / jnp.sum(scores_BSE, axis=-1, keepdims=True)
    else:
        probability_BSE = jax.nn.softmax(logits_BSE, axis=-1)
    return settings.count * jnp.sum(share_BE * jnp.mean(probability_BSE, axis=1), axis=-1)


def _is_chosen(settings: MixtureOfExperts, experts_BN: jax.Array) -> jax.Array:
    """Returns 1 for the expert of each choice and 0 for the others, float32 (B, N, E)."""
    return (experts_BN[:, :, None] == jnp.arange(settings.count)).astype(jnp.float32)
