"""A task file of lm-evaluation-harness: the keys that are supported, with the harness's meaning.

Everything else is refused: a metric has the harness's definition, or is not reported.

References:
    https://github.com/EleutherAI/lm-evaluation-harness, docs/task_guide.md
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from trainer.contract.config.base import NonNegative, Section
from trainer.contract.config.errors import KeyedError, found
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, Loaded, load
from trainer.contract.config.model import CustomModel
from trainer.contract.errors import Problem

if TYPE_CHECKING:
    from jinja2 import Environment

METRICS: Mapping[str, Mapping[str, str]] = {
    "multiple_choice": {"acc": "mean", "acc_norm": "mean"},
    "loglikelihood": {"perplexity": "perplexity", "acc": "mean"},
}
"""Metrics of each type of output, by default all of them, and how their values are aggregated."""
TRAIN = "train"
"""The split of data files that are given without one."""
_NO = "not supported. Remove this key"
_CODE = "runs code of its own, which is not supported. Write the records to a file beforehand"
_NO_TEXT = "not supported: only likelihoods are compared, and no text is generated. Remove this key"
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def _expecting(expected: str) -> WrapValidator:
    """Returns a validator with one message for a value that is of none of several types."""

    def check(given: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(given)
        except ValidationError:
            raise ValueError(f"expected {expected}, found {found(given)}") from None

    return WrapValidator(check)


Files = str | list[str]
_A_TEXT = "a field or a template"


class DatasetKwargs(Section):
    """The files of a task's records."""

    data_files: Annotated[
        Files | dict[str, Files], _expecting("a file, a list of files, or a section of splits")
    ] = Field(
        description="JSON Lines files of each split, relative to the task file. Files without a "
        "split are those of `train`."
    )

    @property
    def by_split(self) -> dict[str, list[str]]:
        """Split -> its files."""
        given = self.data_files if isinstance(self.data_files, dict) else {TRAIN: self.data_files}
        return {split: [of] if isinstance(of, str) else of for split, of in given.items()}


class Metric(Section):
    """A metric to report."""

    metric: Literal["acc", "acc_norm", "perplexity"] = Field(description="Name of the metric.")
    aggregation: Literal["mean", "perplexity"] | None = Field(
        default=None, description="How the records' values are aggregated. null: as usual."
    )
    higher_is_better: bool | None = Field(default=None, description="Not used.")

    @model_validator(mode="after")
    def _is_aggregated_as_usual(self) -> "Metric":
        usual = next(known[self.metric] for known in METRICS.values() if self.metric in known)
        if self.aggregation not in (None, usual):
            message = f"expected {usual} for {self.metric}, found {self.aggregation}"
            raise KeyedError(("aggregation", message))
        return self


class FewshotConfig(Section):
    """How the examples before a record are chosen."""

    not_here: ClassVar[Mapping[str, str]] = {
        "split": "not supported. Set fewshot_split",
        "process_docs": _CODE,
        **dict.fromkeys(("samples", "fewshot_indices", "gen_prefix"), _NO),
        **dict.fromkeys(("doc_to_text", "doc_to_choice", "doc_to_target"), _NO),
        **dict.fromkeys(("target_delimiter", "fewshot_delimiter"), _NO),
    }

    sampler: Literal["default", "first_n"] = Field(
        default="default", description="Whether they are drawn at random, or the first ones."
    )


class TaskFile(Section):
    """A task: its records, the texts made from them, and the metrics to report."""

    not_here: ClassVar[Mapping[str, str]] = {
        "include": "not supported. Copy the keys of the other file into this one",
        "group": "not supported. List the task files of the group in eval.tasks",
        **dict.fromkeys(("process_docs", "process_results", "custom_dataset"), _CODE),
        **dict.fromkeys(("generation_kwargs", "filter_list"), _NO_TEXT),
        **dict.fromkeys(("use_prompt", "gen_prefix", "doc_to_image", "doc_to_audio"), _NO),
        **dict.fromkeys(("task_list", "unsafe_code"), _NO),
    }

    task: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        description="Name of the task, which its metrics are reported under."
    )
    dataset_path: Literal["json"] = Field(description="Format of the records: JSON Lines.")
    dataset_name: None = Field(default=None, description="Not used.")
    dataset_kwargs: DatasetKwargs = Field(description="Files of the records.")
    output_type: Literal["multiple_choice", "loglikelihood"] = Field(
        description="Whether the likelihoods of choices are compared, or that of a text is taken."
    )
    training_split: str | None = Field(default=None, description="Split of examples.")
    validation_split: str | None = Field(
        default=None, description="Split that is evaluated if there is no `test_split`."
    )
    test_split: str | None = Field(default=None, description="Split that is evaluated.")
    fewshot_split: str | None = Field(
        default=None,
        description="Split of the examples before a record. null: the first that is set of "
        "`training_split`, `validation_split` and `test_split`.",
    )
    fewshot_config: FewshotConfig = Field(
        default=FewshotConfig(), description="How the examples are chosen."
    )
    num_fewshot: NonNegative | None = Field(
        default=None, description="Number of examples before a record. null: 0."
    )
    description: str = Field(default="", description="Text before the examples.")
    doc_to_text: Annotated[str | int, _expecting(f"{_A_TEXT}, or a number")] = Field(
        description="Text of a record: a field or a Jinja2 template. A number, or one that results "
        "from these, is the right one of the choices, which are then texts of their own."
    )
    doc_to_target: Annotated[
        str | int | list[int], _expecting(f"{_A_TEXT}, a number, or a list of numbers")
    ] = Field(description="The text that follows, or the number of the right choice, or several.")
    doc_to_choice: Annotated[
        str | list[str] | dict[Any, str] | None, _expecting(f"{_A_TEXT}, or a list of texts")
    ] = Field(
        default=None, description="Choices: a list, a field with a list, or a template of one."
    )
    target_delimiter: str = Field(default=" ", description="Text before a choice.")
    fewshot_delimiter: str = Field(default="\n\n", description="Text after an example.")
    metric_list: Annotated[list[Metric], Field(min_length=1)] | None = Field(
        default=None, description="Metrics to report. null: all of the type of output."
    )
    repeats: Literal[1] = Field(default=1, description="Not used.")
    tag: Any = Field(default=None, description="Not used.")
    task_alias: str | None = Field(default=None, description="Not used.")
    should_decontaminate: bool = Field(default=False, description="Not used.")
    doc_to_decontamination_query: str | None = Field(default=None, description="Not used.")
    metadata: dict[str, Any] | None = Field(default=None, description="Not used.")

    @field_validator("description", "doc_to_text", "doc_to_target", "doc_to_choice")
    @classmethod
    def _is_a_template(cls, given: Any) -> Any:
        from jinja2 import TemplateSyntaxError

        try:
            if isinstance(given, str):
                environment().from_string(given)
        except TemplateSyntaxError as error:
            where = f"line {error.lineno} of it: {error.message}".removesuffix(".")
            raise ValueError(f"expected a Jinja2 template, found an error in {where}") from None
        return given

    @model_validator(mode="after")
    def _is_whole(self) -> "TaskFile":
        if problems := [*self._split_problems(), *self._output_problems()]:
            raise KeyedError(*problems)
        return self

    @property
    def split(self) -> str:
        """The split that is evaluated."""
        split = self.test_split or self.validation_split
        assert split, "checked when the file is read"
        return split

    @property
    def examples_split(self) -> str:
        """The split of the examples before a record."""
        return self.fewshot_split or self.training_split or self.validation_split or self.split

    @property
    def leaves_out_record(self) -> bool:
        """Whether the harness leaves the record itself out of its examples."""
        return self.fewshot_split == self.test_split

    @property
    def metrics(self) -> Sequence[str]:
        """Names of the metrics to report."""
        listed = [one.metric for one in self.metric_list or ()]
        return listed or list(METRICS[self.output_type])

    def _split_problems(self) -> Iterator[tuple[str, str]]:
        known = self.dataset_kwargs.by_split
        if not (self.test_split or self.validation_split):
            yield "dataset_kwargs", "no split to evaluate. Set test_split or validation_split"
        for key in _SPLITS:
            split = getattr(self, key)
            if split is not None and split not in known:
                expected = f"a split of dataset_kwargs.data_files ({', '.join(known)})"
                yield key, f"expected {expected}, found {split!r}"

    def _output_problems(self) -> Iterator[tuple[str, str]]:
        known = METRICS[self.output_type]
        for metric in self.metrics:
            if metric not in known:
                message = f"expected {' or '.join(known)} for {self.output_type}, found {metric}"
                yield "metric_list", message
        if self.output_type == "multiple_choice":
            if self.doc_to_choice is None:
                yield "output_type", "multiple_choice needs choices. Set doc_to_choice"
            return
        for key in ("doc_to_text", "doc_to_target"):
            value = getattr(self, key)
            if not isinstance(value, str):
                yield key, f"expected text for output_type loglikelihood, found {value}"


@cache
def environment() -> "Environment":
    """Returns the environment of templates: the harness's own, in Jinja's sandbox."""
    # Imported late: most commands of the launcher read no task file.
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    made = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    made.filters["regex_replace"] = _regex_replace
    return made


def _regex_replace(string: str, pattern: str, repl: str, count: int = 0) -> str:
    """Replaces a pattern; templates may give the arguments by these names."""
    return re.sub(pattern, repl, string, count=count)


def load_tasks(job: Job) -> list[Loaded[TaskFile]]:
    """Reads the task files of a job. Raises ConfigError with every problem of all files."""
    loaded, problems = list[Loaded[TaskFile]](), list[Problem]()
    for path in job.eval.tasks if job.eval else ():
        try:
            loaded.append(load(Path(path).expanduser(), TaskFile))
        except ConfigError as error:
            problems += error.problems
    problems += _conflicts(job, loaded)
    if problems:
        raise ConfigError(problems)
    return loaded


def _conflicts(job: Job, loaded: Sequence[Loaded[TaskFile]]) -> Iterator[Problem]:
    """Yields what is wrong with one task beside the others, and with the job's model."""
    first: dict[str, str] = {}
    for one in loaded:
        name = one.value.task
        if name in first:
            yield one.problem("task", f"{name!r} is the name of the task in {first[name]}, too")
        first.setdefault(name, one.source)
        is_compared = one.value.output_type == "loglikelihood" and "acc" in one.value.metrics
        if is_compared and isinstance(job.model, CustomModel):
            message = (
                "expected only perplexity with a custom model (model.module), whose likeliest "
                "token is not known, found acc"
            )
            yield one.problem("metric_list", message)
