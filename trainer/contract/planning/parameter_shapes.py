"""Every parameter of a job's model: its name, shape and logical axes, without building the model.

A test compares this table with the NNX modules in `trainer/model/`.
"""

import math
from dataclasses import dataclass, field

from trainer.contract.config.model import Model
from trainer.contract.config.model_parts import LatentAttention, MixtureOfExperts
from trainer.contract.planning.layer_stacks import LAYERS, layer_stacks

# Lanes of a TPU register and a common tile of GPU matrix units: the compiler does not pad a
# vocabulary that is a multiple of it. Megatron-LM pads each device's part of the vocabulary to it:
# section 5.1 of https://arxiv.org/abs/1909.08053.
VOCAB_MULTIPLE = 128
STACKED = ("layer", "round", "expert")
"""Axes that count arrays of the same kind."""
QUERY_KEY = ("query", "key")
"""Projections that `qk_norm` applies to."""
BALANCING_BIAS = "mlp.balancing_bias"
"""Name in a layer of the experts' biases, which no gradient changes."""
BALANCING_BIASES = f"{LAYERS}.{BALANCING_BIAS}"
EXCHANGE_PLACES = 1.25


@dataclass(frozen=True)
class Parameter:
    """One array of the model; `axes` names the logical axis of each dim of `shape`."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelDescription:
    """The parameters of a custom model, as `trainer.analysis.describe_model` prints them."""

    parameters: list[Parameter] = field(default_factory=list[Parameter])
    problems: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Key of the job and message, for each problem of the user's code; empty without problems."""


def padded_vocab(vocab_size: int, parts: int) -> int:
    """Returns the rows of the embedding table: `vocab_size`, padded so that `parts` divides it."""
    multiple = math.lcm(VOCAB_MULTIPLE, parts)
    return -(-vocab_size // multiple) * multiple


def parameters(model: Model, vocab: int) -> list[Parameter]:
    """Returns all parameters in the model's order; `vocab` is the padded vocabulary size.

    Layers are stacked: dim 0 of their arrays is the layer. The first layers can be a stack of
    their own: see layer_stacks.py.
    """
    width = model.d_model
    first = [Parameter("embedding.table", (vocab, width), ("vocab", "embed"))]
    if model.max_positions is not None:
        table = ((model.max_positions, width), ("position", "embed"))
        first.append(Parameter("positions.table", *table))
    last = _norm("final_norm", model, width)
    if not model.tied_embeddings:
        last.append(Parameter("output.kernel", (width, vocab), ("embed", "vocab")))
    return first + _layer_parameters(model) + last


def _layer_parameters(model: Model) -> list[Parameter]:
    return [
        Parameter(f"{stack.name}.{one.name}", (stack.count, *one.shape), ("layer", *one.axes))
        for stack in layer_stacks(model)
        for one in _one_layer(stack.model)
    ]


def _one_layer(model: Model) -> list[Parameter]:
    latent = model.latent_attention
    return [
        *_norms("attention", model),
        *(_attention(model) if latent is None else _latent_attention(model, latent)),
        *_norms("mlp", model),
        *(_mlp("mlp", model, model.d_ff) if model.moe is None else _experts(model, model.moe)),
    ]


def _norms(part: str, model: Model) -> list[Parameter]:
    """Returns the norms of the input and the output of a part of a layer."""
    before, after = norm_places(model)
    return [
        *(_norm(f"{part}_norm", model, model.d_model) if before else ()),
        *(_norm(f"{part}_post_norm", model, model.d_model) if after else ()),
    ]


def norm_places(model: Model) -> tuple[bool, bool]:
    """Returns whether attention and the MLP have a norm before and a norm after them."""
    return model.norm_position != "after", model.norm_position != "before"


def _norm(name: str, model: Model, width: int) -> list[Parameter]:
    parts = ["scale"] if model.norm == "rms" else ["scale", "bias"]
    return [Parameter(f"{name}.{part}", (width,), ("norm",)) for part in parts]


def _attention(model: Model) -> list[Parameter]:
    width, head = model.d_model, model.head_dim
    found = []
    for part, axis, heads in (
        ("query", "heads", model.heads),
        ("key", "kv_heads", model.kv_heads),
        ("value", "kv_heads", model.kv_heads),
    ):
        axes = ("embed", axis, "head_dim")
        bias = model.biases != "none"
        found += _projection(f"attention.{part}", (width, heads, head), axes, bias=bias)
    shape, axes = (model.heads, head, width), ("heads", "head_dim", "embed")
    bias = model.biases == "all"
    found += _projection("attention.output", shape, axes, inputs=2, bias=bias)
    if model.attention_sinks:
        found.append(Parameter("attention.sinks", (model.heads,), ("heads",)))
    if model.qk_norm:
        heads = (model.heads, model.kv_heads) if model.qk_norm == "full" else (1, 1)
        for of, count in zip(QUERY_KEY, heads, strict=True):
            found += _norm(f"attention.{of}_norm", model, count * head)
    return found


def _latent_attention(model: Model, latent: LatentAttention) -> list[Parameter]:
    """Returns the parameters of latent attention.

    A latent takes the place of the residual stream in the kernels that read it: its dim is their
    `embed`, so that `fsdp` splits them, too.
    """
    width, heads = model.d_model, model.heads
    of_head = ("embed", "heads", "head_dim")
    if latent.query_rank is None:
        whole = (width, heads, model.head_dim)
        queries = [Parameter("attention.query.kernel", whole, of_head)]
    else:
        down, up = (width, latent.query_rank), (latent.query_rank, heads, model.head_dim)
        queries = [
            Parameter("attention.query_down.kernel", down, ("embed", "latent")),
            *_norm("attention.query_norm", model, latent.query_rank),
            Parameter("attention.query_up.kernel", up, of_head),
        ]
    down = (width, latent.rank + latent.rotary_dim)
    up = (latent.rank, heads, latent.plain_dim + latent.value_dim)
    out = (heads, latent.value_dim, width)
    return [
        *queries,
        Parameter("attention.key_value_down.kernel", down, ("embed", "latent")),
        *_norm("attention.key_value_norm", model, latent.rank),
        Parameter("attention.key_value_up.kernel", up, of_head),
        Parameter("attention.output.kernel", out, ("heads", "head_dim", "embed")),
    ]


def _mlp(name: str, model: Model, hidden: int) -> list[Parameter]:
    width, bias = model.d_model, model.biases == "all"
    found = []
    for part in hidden_parts(model):
        found += _projection(f"{name}.{part}", (width, hidden), ("embed", "mlp"), bias=bias)
    return found + _projection(f"{name}.down", (hidden, width), ("mlp", "embed"), bias=bias)


def _experts(model: Model, experts: MixtureOfExperts) -> list[Parameter]:
    width, hidden, count = model.d_model, model.d_ff, experts.count
    inward = ((count, width, hidden), ("expert", "embed", "mlp"))
    outward = ((count, hidden, width), ("expert", "mlp", "embed"))
    bias = model.biases == "all"
    found = _projection("mlp.router", (width, count), ("embed", "router"), bias=bias)
    if experts.is_biased:
        found.append(Parameter(BALANCING_BIAS, (count,), ("router",)))
    for part in (*hidden_parts(model), "down"):
        shape, axes = outward if part == "down" else inward
        found.append(Parameter(f"mlp.{part}.kernel", shape, axes))
        if bias:
            found.append(Parameter(f"mlp.{part}.bias", (count, shape[2]), ("expert", axes[2])))
    return found + (_mlp("mlp.shared", model, experts.shared * hidden) if experts.shared else [])


def capacity(experts: MixtureOfExperts, length: int) -> int:
    """Returns an expert's capacity per sequence, in tokens: `length` when none may be dropped.

    References:
        Switch Transformers, equation 3, with one choice per token: https://arxiv.org/abs/2101.03961
    """
    if experts.capacity_factor is None:
        return length
    even = length * experts.top_k / experts.count
    return min(length, math.ceil(even * experts.capacity_factor))


def exchange_places(devices: int) -> float:
    """Returns a device's places for rows of its experts, relative to the choices of its tokens.

    That many `devices` exchange rows. With a single place for each choice, uneven loads of experts
    would often need a second pass: see trainer/model/moe_exchange.py.
    """
    return min(EXCHANGE_PLACES, devices)


def hidden_parts(model: Model) -> tuple[str, ...]:
    """Returns the names of the projections to the feed-forward part's hidden width."""
    return ("up",) if model.mlp == "gelu" else ("gate", "up")


def _projection(
    name: str, shape: tuple[int, ...], axes: tuple[str, ...], *, inputs: int = 1, bias: bool
) -> list[Parameter]:
    kernel = Parameter(f"{name}.kernel", shape, axes)
    return [kernel, Parameter(f"{name}.bias", shape[inputs:], axes[inputs:])] if bias else [kernel]
