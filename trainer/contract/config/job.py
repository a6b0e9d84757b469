"""The job file's schema: every key that a user can set, with its default.

The launcher reads it to check and plan, the trainer to run. Pure Python, no JAX.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainer.contract.config.base import NonNegative, Positive, Section
from trainer.contract.config.data import Data
from trainer.contract.config.errors import KeyedError
from trainer.contract.config.lora import Lora
from trainer.contract.config.model import AnyModel, Model
from trainer.contract.config.optimizer import Optimizer

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
AxisSize = Annotated[int, Field(ge=-1)]


class Mesh(Section):
    """Mesh axis sizes. -1 takes the remaining devices; `data: null` is the number of slices."""

    data: AxisSize | None = None
    fsdp: AxisSize = -1
    expert: AxisSize = Field(default=1, description="of a model with experts; it splits rows too")
    context: AxisSize = Field(default=1, description="for long sequences: it splits each of them")
    tensor: AxisSize = 1


class MultipleChoice(Section):
    """Multiple-choice questions; the model answers with its most likely choice."""

    path: Annotated[str, Field(min_length=1)] = Field(description="JSON Lines, on all hosts")
    question: str = Field(default="question", description="the field of its text")
    choices: str = Field(default="choices", description="the field of a list of texts")
    answer: str = Field(default="answer", description="the field of the right one, from 0")


class Evaluate(Section):
    every_steps: Positive = 100
    batches: Positive = 8
    multiple_choice: MultipleChoice | None = None


class Checkpoint(Section):
    """Schedule and retention of saves, and the weights that a run starts from."""

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
        """Defaults to a save every 10 minutes when the job sets no interval."""
        if isinstance(given, dict) and not given.keys() & {"every_steps", "every_minutes"}:
            return {**given, "every_minutes": 10.0}
        return given


class Profile(Section):
    """Steps whose trace is written to the run's folder."""

    steps: tuple[Positive, Positive] = Field(strict=False, description="the first and the last")
    processes: tuple[NonNegative, ...] = Field(default=(0,), strict=False)

    @model_validator(mode="after")
    def _is_ordered(self) -> "Profile":
        first, last = self.steps
        if first > last:
            raise KeyedError(("steps", f"the first, {first}, is after the last, {last}"))
        return self


class Wandb(Section):
    """Weights & Biases settings; `secrets: [WANDB_API_KEY]` gives the hosts the key."""

    project: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)] | None = Field(default=None, description="the job's")
    mode: Literal["online", "offline"] = "online"


class Sample(Section):
    """Text that the trained model generates at the end of a run."""

    prompt: str = "def "
    tokens: Positive = 200
    temperature: Annotated[float, Field(ge=0)] = 0.8
    every_steps: Positive | None = Field(default=None, description="on the way as well")


class Retries(Section):
    """Limits on the automatic restarts of a run."""

    failures: NonNegative = Field(
        default=3, description="crashes and hangs, counted anew after each checkpoint"
    )
    preemptions: NonNegative | None = Field(
        default=None, description="hosts lost in the whole run; null: any number"
    )


Seconds = Annotated[float, Field(gt=0)]


class Deadlines(Section):
    """Seconds without progress after which a host counts as hanging."""

    start_s: Seconds = Field(
        default=300.0,
        description="A host starts within this time, its imports and checks included.",
    )
    compile_s: Seconds = Field(
        default=1800.0, description="A host compiles the step within this time."
    )
    restore_s: Seconds = Field(
        default=900.0,
        description="A host reads a checkpoint, or the weights of init_from, within this time.",
    )
    step_s: Seconds = Field(
        default=10.0,
        description="A step has at least this time, and five times the usual time of a step.",
    )
    evaluate_s: Seconds = Field(
        default=120.0,
        description="An evaluation has at least this time, and five times the usual time of one.",
    )
    save_s: Seconds = Field(
        default=1200.0,
        description="A host that saves writes something at least once in this time.",
    )


class BaseJob(Section):
    """Keys that all jobs share."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    storage: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="a folder that all hosts share, or gs://...; null: the run's own"
    )
    retries: Retries = Retries()
    deadlines: Deadlines = Deadlines()
    secrets: tuple[VariableName, ...] = Field(
        default=(),
        strict=False,
        description="variables of whoever launches that all hosts get; only names are written down",
    )


class Job(BaseJob):
    """A training job."""

    steps: Positive
    seed: NonNegative = 0
    log_every: Positive = 1
    tensorboard: bool = Field(
        default=False, description="event files in the run's folder; takes the extra of that name"
    )
    wandb: Wandb | None = Field(
        default=None, description="the same at Weights & Biases; takes the extra of that name"
    )
    model: AnyModel
    lora: Lora | None = Field(
        default=None, description="adapters are trained, and the model stays as it is"
    )
    data: Data
    mesh: Mesh = Mesh()
    optimizer: Optimizer = Optimizer()
    evaluate: Evaluate | None = Evaluate()
    sample: Sample | None = Sample()
    checkpoint: Checkpoint | None = Checkpoint.model_validate({})
    profile: Profile | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Defaults `sample` to null for a custom model, which generates no text."""
        model = given.get("model") if isinstance(given, dict) else None
        if isinstance(model, dict) and "module" in model:
            return {"sample": None, **given}
        return given

    @property
    def decoder(self) -> Model:
        """The built-in decoder of a job without a custom model."""
        assert isinstance(self.model, Model)
        return self.model
