"""The sections `eval` and `sample` of a job file."""

from typing import Annotated

from pydantic import Field

from trainer.contract.config.base import Positive, Section


class MultipleChoice(Section):
    """Multiple-choice questions; the model answers with its most likely choice."""

    path: Annotated[str, Field(min_length=1)] = Field(
        description="JSON Lines file of questions, the same on all hosts."
    )
    question_field: str = Field(
        default="question", description="Field with the text of the question."
    )
    choices_field: str = Field(
        default="choices", description="Field with the list of choices, which are texts."
    )
    answer_field: str = Field(
        default="answer", description="Field with the index of the right choice, from 0."
    )


class Eval(Section):
    """The schedule of evaluations: validation loss, multiple choice and tasks."""

    every_steps: Positive = Field(
        default=100,
        description="Number of steps between evaluations. The last step is always evaluated.",
    )
    batches: Positive = Field(
        default=8,
        description="Number of global batches of held-out documents in an evaluation, per source.",
    )
    multiple_choice: MultipleChoice | None = Field(
        default=None, description="Questions that every evaluation asks. null: none."
    )
    tasks: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        strict=False,
        description="Task files (YAML) of lm-evaluation-harness, the same on all hosts, whose "
        "metrics every evaluation reports.",
    )


class Sample(Section):
    """Text that the model generates at the end of a run, and during it when requested."""

    prompt: str = Field(default="def ", description="Text that the model continues.")
    tokens: Positive = Field(default=200, description="Maximum number of tokens to generate.")
    temperature: Annotated[float, Field(ge=0)] = Field(
        default=0.8, description="Sampling temperature. 0 always takes the likeliest token."
    )
    every_steps: Positive | None = Field(
        default=None,
        description="Number of steps between samples during training. null: only one at the end.",
    )
