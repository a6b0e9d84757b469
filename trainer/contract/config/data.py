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
        description="tokens: the bytes, <|endoftext|> between documents, and merges"
    )


def _kind_of_tokenizer(given: Any) -> str:
    return "trained" if isinstance(given, dict | TrainTokenizer) else "named"


Tokenizer = Annotated[
    Annotated[str, Field(min_length=1), Tag("named")] | Annotated[TrainTokenizer, Tag("trained")],
    Discriminator(_kind_of_tokenizer),
]


class ChatFields(Section):
    """Fields of the records of `source: chat`: a list of messages, or a prompt and its answer."""

    messages: str = Field(default="messages", description="each with its role and content")
    prompt: str | None = Field(default=None, description="in place of messages; so is answer")
    answer: str | None = None

    @model_validator(mode="after")
    def _are_both(self) -> "ChatFields":
        if (self.prompt is None) != (self.answer is None):
            lacking = "answer" if self.answer is None else "prompt"
            raise KeyedError((lacking, "missing: a prompt and its answer are two fields"))
        return self


class Source(Section):
    """One corpus of a mixture; `text_field`, `fields` and `dtype` default to those of `data`."""

    source: Literal["stdlib", "text", "jsonl", "chat", "parquet", "array_record", "tokens"]
    path: str | None = None
    text_field: str | None = None
    fields: ChatFields | None = None
    dtype: Literal["uint16", "uint32"] | None = None
    weight: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="sequences of it, beside the weights of the others"
    )
    name: str | None = Field(default=None, description="of its evaluation; null: the path")

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
        "stdlib", "text", "jsonl", "chat", "parquet", "array_record", "tokens", "mixture"
    ]
    mixture: Annotated[tuple[Source, ...], Field(min_length=2)] | None = Field(
        default=None, strict=False, description="several corpora, each with its weight"
    )
    path: str | None = Field(
        default=None,
        description="a glob on the hosts or gs://..., of files that may be .gz or .zst",
    )
    text_field: str = Field(
        default="text", description="of the records of source: jsonl; of parquet the column"
    )
    fields: ChatFields = Field(default=ChatFields(), description="of the records of source: chat")
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
        """Sets `source: mixture` when only `mixture` is given."""
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
