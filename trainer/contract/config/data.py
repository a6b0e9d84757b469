"""The job file's `data`: corpora, the tokenizer, and the size of a global batch."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from trainer.contract.config.base import Fraction, NonNegative, Positive, Section
from trainer.contract.config.errors import KeyedError

BYTES = "bytes"
"""Name of the tokenizer that needs no file."""


class TrainTokenizer(Section):
    """A byte-level BPE tokenizer that is trained on the training documents."""

    train: Annotated[int, Field(ge=257)] = Field(
        description="Vocabulary size of the tokenizer to train: 256 bytes, the end-of-text token "
        "and merges."
    )


def _kind_of_tokenizer(given: Any) -> str:
    return "trained" if isinstance(given, dict | TrainTokenizer) else "named"


Tokenizer = Annotated[
    Annotated[str, Field(min_length=1), Tag("named")] | Annotated[TrainTokenizer, Tag("trained")],
    Discriminator(_kind_of_tokenizer),
]


class ChatFields(Section):
    """Fields of the records of `source: chat`: a list of messages, or a prompt and its answer."""

    messages: str = Field(
        default="messages",
        description="Field with the list of messages, each with a `role` and a `content`.",
    )
    prompt: str | None = Field(
        default=None,
        description="Field with the prompt, for records of a prompt and an answer instead of "
        "messages.",
    )
    answer: str | None = Field(
        default=None, description="Field with the answer; required with `prompt`."
    )

    @model_validator(mode="after")
    def _are_both(self) -> "ChatFields":
        if (self.prompt is None) != (self.answer is None):
            lacking = "answer" if self.answer is None else "prompt"
            raise KeyedError((lacking, "missing: set both prompt and answer, or neither"))
        return self


class Source(Section):
    """One corpus of a mixture; `text_field`, `fields` and `dtype` default to those of `data`."""

    source: Literal[
        "stdlib", "text", "jsonl", "chat", "preference", "parquet", "array_record", "tokens"
    ] = Field(description="Format of this corpus, as in `data.source`.")
    path: str | None = Field(default=None, description="Files of this corpus, as in `data.path`.")
    text_field: str | None = Field(
        default=None, description="Field or column with the text. null: `data.text_field`."
    )
    fields: ChatFields | None = Field(
        default=None, description="Fields of conversations. null: `data.fields`."
    )
    dtype: Literal["uint16", "uint32"] | None = Field(
        default=None, description="Type of the tokens in .bin files. null: `data.dtype`."
    )
    weight: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1,
        description="Share of sequences from this corpus, relative to the other weights.",
    )
    name: str | None = Field(
        default=None,
        description="Name of the corpus in evaluation results. null: its path or source.",
    )

    @property
    def shown(self) -> str:
        """Display name: `name`, else `path`, else `source`."""
        return self.name or self.path or self.source


def _require_source_or_mixture(schema: dict[str, Any]) -> None:
    """Changes the JSON Schema: `mixture` implies its source."""
    schema["required"].remove("source")
    schema["anyOf"] = [{"required": ["source"]}, {"required": ["mixture"]}]


class Data(Section):
    """The corpora to read, and how they are cut into global batches."""

    model_config = ConfigDict(json_schema_extra=_require_source_or_mixture)

    source: Literal[
        "stdlib",
        "text",
        "jsonl",
        "chat",
        "preference",
        "parquet",
        "array_record",
        "tokens",
        "mixture",
    ] = Field(
        description="Format of the corpus. `stdlib` is the source code of Python's standard "
        "library; `preference` are pairs of completions for `dpo`; `tokens` are files of token "
        "ids; `mixture` combines several corpora."
    )
    mixture: Annotated[tuple[Source, ...], Field(min_length=2)] | None = Field(
        default=None,
        strict=False,
        description="Corpora to interleave by weight. It implies `source: mixture`.",
    )
    path: str | None = Field(
        default=None,
        description="Glob of the corpus files: a path on every host, or a URL such as "
        "`gs://bucket/*.jsonl`. Files may be compressed (.gz, .zst).",
    )
    text_field: str = Field(
        default="text",
        description="Field of each JSON record, or Parquet column, with the text.",
    )
    fields: ChatFields = Field(
        default=ChatFields(), description="Fields of the records of `source: chat`."
    )
    dtype: Literal["uint16", "uint32"] = Field(
        default="uint16",
        description="Type of the token ids in .bin files of `source: tokens`; .npy files contain "
        "their type.",
    )
    max_bad_records: NonNegative = Field(
        default=0,
        description="Number of unusable records that are skipped. With more, the run fails.",
    )
    tokenizer: Tokenizer = Field(
        default=BYTES,
        description="Tokenizer: `bytes`, the path of a tokenizer.json that is the same on all "
        "hosts, or `{train: SIZE}` to train one on the corpus.",
    )
    eos_token: str | None = Field(
        default=None,
        description="Token that separates documents. null: the end-of-text token of the "
        "tokenizer.json.",
    )
    seq_len: Positive = Field(
        description="Number of tokens in a sequence. A pair of `source: preference` is one "
        "sequence, with both texts."
    )
    global_batch: Positive = Field(
        description="Number of sequences in a step, over all processes and micro-batches."
    )
    grad_accum_steps: Positive = Field(
        default=1,
        description="Number of micro-batches that a step is split into. Their gradients are "
        "accumulated before the update, which saves memory. With `mesh.pipeline`, they pass "
        "through the stages one behind the other.",
    )
    mask_across_documents: bool = Field(
        default=True,
        description="Whether attention is masked at document boundaries and positions restart "
        "there.",
    )
    validation_fraction: Fraction = Field(
        default=0.02,
        description="Fraction of the documents that is held out of training for evaluation.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Sets `source: mixture` when only `mixture` is given."""
        if isinstance(given, dict) and given.get("mixture") and "source" not in given:
            return {**given, "source": "mixture"}
        return given

    @model_validator(mode="after")
    def _is_one_or_a_mixture(self) -> "Data":
        if self.mixture is None and self.source == "mixture":
            raise KeyedError(("mixture", "missing: source: mixture requires a list of sources"))
        if self.mixture is None:
            return self
        if self.source != "mixture":
            raise KeyedError(("source", "a mixture lists its own sources. Remove this key"))
        names = [source.shown for source in self.mixture]
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise KeyedError(
                ("mixture", f"two sources are named {twice[0]!r}. Give each its own name")
            )
        return self

    @property
    def parts(self) -> "tuple[Data, ...]":
        """One `Data` section per source, without `mixture`."""
        if self.mixture is None:
            return (self,)
        return tuple(
            self.model_copy(
                update={
                    "mixture": None,
                    "source": source.source,
                    "path": source.path,
                    "text_field": source.text_field or self.text_field,
                    "fields": source.fields or self.fields,
                    "dtype": source.dtype or self.dtype,
                }
            )
            for source in self.mixture
        )
