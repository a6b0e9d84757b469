"""Rejects conflicts between the keys of `model`: (key, message) pairs."""

from trainer.contract.config.errors import Problems
from trainer.contract.config.model import REMATERIALIZING, Model
from trainer.contract.config.model_parts import LatentAttention, MixtureOfExperts


def model_problems(model: Model, seq_len: int) -> Problems:
    """Yields conflicts of a model with itself and with the length of sequences."""
    if model.heads % model.kv_heads:
        yield (
            "model.kv_heads",
            f"{model.heads} query heads are not divisible by {model.kv_heads} key/value heads",
        )
    if model.offload and model.remat not in REMATERIALIZING:
        yield (
            "model.offload",
            "with model.remat: none, all activations stay on the devices. Set model.remat to "
            f"{' or '.join(REMATERIALIZING)}, or remove this key",
        )
    yield from _positions(model, seq_len)
    yield from _windows(model)
    if model.latent_attention:
        yield from _latent_attention(model, model.latent_attention)
    elif model.rope_scaling and model.rope_scaling.mscale is not None:
        yield "model.rope_scaling.mscale", "applies only to latent_attention. Remove this key"
    if model.moe:
        yield from _experts(model, model.moe)
    if model.precision and model.moe and model.moe.capacity_factor is None:
        yield (
            "model.precision",
            f"{model.precision} needs experts with a capacity: the grouped products of dropless "
            "ones have no 8-bit form. Set model.moe.capacity_factor, or remove this key",
        )


def _positions(model: Model, seq_len: int) -> Problems:
    rows = model.max_positions
    if model.positions == "rotary":
        key, width = "head_dim", model.head_dim
        if latent := model.latent_attention:
            key, width = "latent_attention.rotary_dim", latent.rotary_dim
        if width % 2:
            yield f"model.{key}", f"must be even for rotary positions, found {width}"
        if rows is not None:
            yield (
                "model.max_positions",
                "applies only to learned positions. Remove this key, or set positions: learned",
            )
        return
    for key in ("rope_scaling", "local_rope_theta"):
        if getattr(model, key) is not None:
            yield f"model.{key}", "applies only to rotary positions. Remove this key"
    if rows is None:
        yield (
            "model.max_positions",
            f"learned positions need this key. Set it to at least seq_len ({seq_len})",
        )
    elif seq_len > rows:
        yield "data.seq_len", f"{seq_len} is more than the model's {rows} learned positions"


def _windows(model: Model) -> Problems:
    if model.sliding_window is None:
        for key in ("global_every", "local_rope_theta"):
            if getattr(model, key) is not None:
                yield (
                    f"model.{key}",
                    "applies only to layers with a sliding window. Remove this key, or set "
                    "sliding_window",
                )
    elif model.global_every is not None and model.global_every > model.layers:
        yield (
            "model.global_every",
            f"{model.global_every} is more than the model's {model.layers} layers. Remove this key",
        )


def _latent_attention(model: Model, latent: LatentAttention) -> Problems:
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


def _experts(model: Model, moe: MixtureOfExperts) -> Problems:
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
