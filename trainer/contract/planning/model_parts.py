"""Rejects conflicts inside the sections of the job file's `model`: (key, message) pairs."""

from collections.abc import Iterator

from trainer.contract.config.model import Model
from trainer.contract.config.model_parts import LatentAttention, MixtureOfExperts

Problems = Iterator[tuple[str, str]]


def latent_attention(model: Model, latent: LatentAttention) -> Problems:
    """Yields keys whose values latent attention does not support."""
    both = latent.plain_dim + latent.rotary_dim
    for key, is_fine, expected in (
        ("head_dim", model.head_dim == both, f"plain_dim plus rotary_dim, {both}"),
        ("kv_heads", model.kv_heads == model.heads, f"the number of heads, {model.heads}"),
        ("positions", model.positions == "rotary", "'rotary'"),
        ("biases", model.biases == "none", "'none'"),
        ("qk_norm", not model.qk_norm, "false"),
        ("attention_sinks", not model.attention_sinks, "false"),
    ):
        if not is_fine:
            found = getattr(model, key)
            yield f"model.{key}", f"found {found}. With latent_attention, it must be {expected}"


def experts(model: Model, moe: MixtureOfExperts) -> Problems:
    """Yields conflicts between the keys of a mixture of experts."""
    groups, per_group = moe.groups, moe.count // moe.groups
    within = min(moe.top_groups, groups) * per_group
    if moe.top_k > moe.count:
        yield (
            "model.moe.top_k",
            f"{moe.top_k} is more than the number of experts, {moe.count}",
        )
    elif moe.count % groups:
        yield "model.moe.groups", f"{moe.count} experts are not divisible by {groups} groups"
    elif moe.scores == "sigmoid" and groups > 1 and per_group < 2:
        yield "model.moe.groups", "with sigmoid scores, a group needs at least two experts"
    elif moe.top_k > within:
        yield (
            "model.moe.top_k",
            f"{moe.top_k} is more than the {within} experts of top_groups {moe.top_groups}",
        )
    if moe.top_groups > groups:
        yield (
            "model.moe.top_groups",
            f"{moe.top_groups} is more than the number of groups, {groups}",
        )
    yield from _dense_layers(model, moe)


def _dense_layers(model: Model, moe: MixtureOfExperts) -> Problems:
    count, hidden = moe.dense_layers, moe.dense_d_ff
    if count and hidden is None:
        yield "model.moe.dense_d_ff", f"{count} dense layers (dense_layers) need this key"
    if hidden is not None and not count:
        yield (
            "model.moe.dense_d_ff",
            "applies only to dense layers. Remove this key, or set dense_layers",
        )
    if count >= model.layers:
        yield (
            "model.moe.dense_layers",
            f"{count} leaves no layer of {model.layers} with experts",
        )
    if count and model.global_every is not None:
        yield "model.moe.dense_layers", "cannot be combined with global_every. Remove one of both"
