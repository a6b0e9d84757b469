"""The job file's schema: what a user asks for, with every default.

Both halves read it: the launcher to check and plan, the trainer to run. Pure Python, no jax.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    Tag,
    model_validator,
)

from trainer.spec.explain import KeyedError
from trainer.spec.presets import PRESETS

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
AxisSize = Annotated[int, Field(ge=-1)]
SLOWEST_BFLOAT16_MEAN = 0.996
"""A number of 8 bits changes by 1/256 of itself or not at all."""
KEPT_MEANS = {
    "adamw": ("beta1", "beta2"), "lion": ("beta2",), "muon": ("momentum", "beta1", "beta2"),
}  # fmt: skip
"""What says how slowly the means of each optimizer move."""
BYTES = "bytes"
"""The tokenizer that needs no file."""


class Section(BaseModel):
    """A block of a file: unknown keys are errors, types are not coerced, values do not change."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True
    )
    not_here: ClassVar[Mapping[str, str]] = {}
    """Keys that belong elsewhere, and what to say of each."""


class RopeScaling(Section):
    """How rotary positions reach further than the model was trained for."""

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
    """Feed-forward parts of which each token takes a few."""

    count: Annotated[int, Field(ge=2)]
    per_token: Positive = 2
    capacity_factor: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="room of an expert in a sequence, over its even share; null: for all tokens",
    )
    balance_loss: Annotated[float, Field(ge=0)] = Field(
        default=0.01, description="weight of the loss that evens out the experts' tokens"
    )


class Model(Section):
    """A decoder-only transformer; `preset` fills in what is not given."""

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
        """Preset values below the given ones; kv_heads and head_dim follow from the others.

        What follows from a wrong value stays wrong: the loader tells only of what was written.
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


class Trained(Section):
    """A tokenizer that is made from the training documents: byte-level BPE."""

    train: Annotated[int, Field(ge=257)] = Field(
        description="tokens: the bytes, <|endoftext|> between documents, and merges"
    )


def _kind_of_tokenizer(given: Any) -> str:
    return "trained" if isinstance(given, dict | Trained) else "named"


Tokenizer = Annotated[
    Annotated[str, Field(min_length=1), Tag("named")] | Annotated[Trained, Tag("trained")],
    Discriminator(_kind_of_tokenizer),
]


class Source(Section):
    """One of the corpora of a mixture; what is not said is as in `data` itself."""

    source: Literal["stdlib", "text", "jsonl", "parquet", "array_record", "tokens"]
    path: str | None = None
    text_field: str | None = None
    dtype: Literal["uint16", "uint32"] | None = None
    weight: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="sequences of it, beside the weights of the others"
    )
    name: str | None = Field(default=None, description="of its evaluation; null: the path")

    @property
    def shown(self) -> str:
        """Its name, wherever it has it from."""
        return self.name or self.path or self.source


class Data(Section):
    """What is read, and how it is cut into global batches."""

    source: Literal["stdlib", "text", "jsonl", "parquet", "array_record", "tokens", "mixture"]
    mixture: Annotated[tuple[Source, ...], Field(min_length=2)] | None = Field(
        default=None, strict=False, description="several corpora, each with its weight"
    )
    path: str | None = Field(
        default=None, description="a glob on the hosts, of files that may be .gz or .zst"
    )
    text_field: str = Field(
        default="text", description="of the records of source: jsonl; of parquet the column"
    )
    dtype: Literal["uint16", "uint32"] = Field(
        default="uint16", description="of the .bin files of source: tokens; .npy files say it"
    )
    max_bad_records: NonNegative = Field(
        default=0, description="so many records without a text are left out; more end the run"
    )
    tokenizer: Tokenizer = Field(
        default=BYTES,
        description="bytes, the path of a tokenizer.json, the same on all hosts, or {train: 4096}",
    )
    separator: str | None = Field(
        default=None, description="the token between documents; null: the file's end of text"
    )
    seq_len: Positive
    global_batch: Positive = Field(description="sequences per step, over all processes")
    micro_batches: Positive = Field(
        default=1, description="parts of a step, accumulated one by one"
    )
    document_boundaries: bool = Field(
        default=True, description="attention and positions stop at documents"
    )
    held_out: Fraction = Field(
        default=0.02, description="share of the documents kept for evaluation"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """A mixture is a source; what they are is said in it."""
        if isinstance(given, dict) and given.get("mixture") and "source" not in given:
            return {**given, "source": "mixture"}
        return given

    @model_validator(mode="after")
    def _is_one_or_a_mixture(self) -> "Data":
        if self.mixture is None and self.source == "mixture":
            raise KeyedError(("mixture", "missing: a list of sources with their weights"))
        if self.mixture is None:
            return self
        if self.source != "mixture":
            raise KeyedError(("source", "the sources of a mixture are in it: leave this out"))
        names = [source.shown for source in self.mixture]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise KeyedError(("mixture", f"two sources are {twice[0]!r}: give each a name"))
        return self

    @property
    def parts(self) -> "tuple[Data, ...]":
        """One for each source, without a mixture."""
        if self.mixture is None:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "mixture": None,
                    "source": source.source,
                    "path": source.path,
                    "text_field": source.text_field or self.text_field,
                    "dtype": source.dtype or self.dtype,
                }
            )
            for source in self.mixture
        )


class Mesh(Section):
    """Axis sizes; -1 is what is left over, null for data is the number of slices."""

    data: AxisSize | None = None
    fsdp: AxisSize = -1
    expert: AxisSize = Field(default=1, description="of a model with experts; it splits rows too")
    tensor: AxisSize = 1


class Group(Section):
    """Parameters with a learning rate or a weight decay of their own."""

    pattern: Annotated[str, Field(min_length=1)] = Field(
        description="of their names, such as layers.*_norm.scale"
    )
    learning_rate_factor: Annotated[float, Field(ge=0)] = 1.0
    weight_decay: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="null: as without the group"
    )


class Optimizer(Section):
    name: Literal["adamw", "lion", "muon"] = "adamw"
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
        """A mean whose steps are all below the rounding of bfloat16 stays where it is."""
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


class Evaluate(Section):
    every_steps: Positive = 100
    batches: Positive = 8


class Checkpoint(Section):
    """When the state is saved, which saves are kept, and what a run may start from."""

    every_steps: Positive | None = None
    every_minutes: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="10 where neither is given; both may be"
    )
    keep: Positive = Field(default=3, description="the newest ones")
    keep_every_steps: Positive | None = Field(default=None, description="kept for good")
    keep_best: NonNegative = Field(default=0, description="by evaluation loss")
    on_save_error: Literal["continue", "stop"] = "continue"
    on_data_change: Literal["stop", "continue"] = Field(
        default="stop", description="where a resumed run has another corpus or batch size"
    )
    grace_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="how long a stop on request may take to save"
    )
    init_from: str | None = Field(
        default=None,
        description="weights to start from: a run, a checkpoint, or a Hugging Face model",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Saving by time alone where nothing is said."""
        if isinstance(given, dict) and not given.keys() & {"every_steps", "every_minutes"}:
            return {**given, "every_minutes": 10.0}
        return given


class Profile(Section):
    """Steps whose trace is written into the run's folder."""

    steps: tuple[Positive, Positive] = Field(strict=False, description="the first and the last")
    processes: tuple[NonNegative, ...] = Field(default=(0,), strict=False)

    @model_validator(mode="after")
    def _is_ordered(self) -> "Profile":
        first, last = self.steps
        if first > last:
            raise KeyedError(("steps", f"the first, {first}, is after the last, {last}"))
        return self


class Sample(Section):
    """Text that the trained model writes at the end of a run."""

    prompt: str = "def "
    tokens: Positive = 200
    temperature: Annotated[float, Field(ge=0)] = 0.8
    every_steps: Positive | None = Field(default=None, description="on the way as well")


class Retries(Section):
    """How often a run starts anew by itself."""

    failures: NonNegative = Field(
        default=3, description="crashes and hangs, counted anew after each checkpoint"
    )
    preemptions: NonNegative | None = Field(
        default=None, description="hosts lost in the whole run; null: any number"
    )


class BaseJob(Section):
    """What every job has, whatever it runs."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    storage: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="a folder that all hosts share, or gs://...; null: the run's own"
    )
    retries: Retries = Retries()
    secrets: tuple[VariableName, ...] = Field(
        default=(),
        strict=False,
        description="variables of whoever launches that all hosts get; only names are written down",
    )


class Job(BaseJob):
    """One training job."""

    steps: Positive
    seed: NonNegative = 0
    log_every: Positive = 1
    tensorboard: bool = Field(
        default=False, description="event files in the run's folder; takes the extra of that name"
    )
    model: Model
    data: Data
    mesh: Mesh = Mesh()
    optimizer: Optimizer = Optimizer()
    evaluate: Evaluate | None = Evaluate()
    sample: Sample | None = Sample()
    checkpoint: Checkpoint | None = Checkpoint.model_validate({})
    profile: Profile | None = None
