"""The job file's schema: every key that a user can set, with its default.

The launcher reads it to check and plan, the trainer to run. Pure Python, no JAX.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainer.contract.config.base import NonNegative, Positive, Section, Seed
from trainer.contract.config.budget import Budget
from trainer.contract.config.checkpoint import Checkpoint
from trainer.contract.config.data import Data
from trainer.contract.config.distill import Distill
from trainer.contract.config.dpo import Dpo
from trainer.contract.config.errors import KeyedError
from trainer.contract.config.eval import Eval, Sample
from trainer.contract.config.lora import Lora
from trainer.contract.config.mesh import Mesh
from trainer.contract.config.model import AnyModel, Model
from trainer.contract.config.notify import AnyTarget, VariableName
from trainer.contract.config.optimizer import Optimizer
from trainer.contract.config.sweep import Sweep


class Integrity(Section):
    """Checks whether hosts compute the same."""

    replay_every: Positive = Field(
        description="Number of steps between checks. Each host computes the same examples on its "
        "own devices, and an update follows only if all have the same gradients. The step after "
        "every multiple is checked, and the first one of each attempt."
    )
    tpu_detector: bool = Field(
        default=False,
        description="Whether libtpu's own detector of wrong results repeats the operations of a "
        "check. Has an effect on TPUs only.",
    )


class Profile(Section):
    """Steps whose trace is written to the run directory."""

    steps: tuple[Positive, Positive] = Field(
        strict=False, description="First and last step of the trace."
    )
    processes: tuple[NonNegative, ...] = Field(
        default=(0,), strict=False, description="Numbers of the processes that write a trace."
    )

    @model_validator(mode="after")
    def _is_ordered(self) -> "Profile":
        first, last = self.steps
        if first > last:
            raise KeyedError(("steps", f"the first step, {first}, is after the last, {last}"))
        return self


class Wandb(Section):
    """Weights & Biases settings; `secrets: [WANDB_API_KEY]` gives the hosts the key."""

    project: Annotated[str, Field(min_length=1)] = Field(description="Project at Weights & Biases.")
    name: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="Name of the run there. null: the job's name."
    )
    mode: Literal["online", "offline"] = Field(
        default="online",
        description="`online` uploads during the run; `offline` writes files for `wandb sync`.",
    )


Seconds = Annotated[float, Field(gt=0)]
NonNegativeSeconds = Annotated[float, Field(ge=0)]


class Retries(Section):
    """Limits on the automatic restarts of a run."""

    failures: NonNegative = Field(
        default=3,
        description="Number of crashes and hangs after which the run fails. Each new checkpoint "
        "resets the count.",
    )
    preemptions: NonNegative | None = Field(
        default=None,
        description="Number of preemptions after which the run fails. null: no limit.",
    )
    standby_after_s: NonNegativeSeconds | None = Field(
        default=15.0,
        description="Seconds after the first step until each host prepares a process for the next "
        "attempt. It has imported everything and holds no device. null: no such process.",
    )


class Deadlines(Section):
    """Seconds after which a wait ends, mostly because a host without progress counts as hung."""

    start_s: Seconds = Field(
        default=300.0,
        description="Maximum seconds for a host to start, imports and checks included.",
    )
    compile_s: Seconds = Field(
        default=1800.0, description="Maximum seconds for a host to compile the step."
    )
    restore_s: Seconds = Field(
        default=900.0,
        description="Maximum seconds for a host to read a checkpoint, or the weights of "
        "`init_from`.",
    )
    step_s: Seconds = Field(
        default=10.0,
        description="Minimum deadline of a step in seconds, 0.4 of it for an idle host; the "
        "deadline is five times the usual step time if that is longer (three times if idle).",
    )
    evaluate_s: Seconds = Field(
        default=120.0,
        description="Minimum deadline of an evaluation in seconds; the deadline is five times the "
        "usual time if that is longer.",
    )
    save_s: Seconds = Field(
        default=1200.0,
        description="Maximum seconds in which a host that saves a checkpoint writes nothing.",
    )
    after_s: Seconds | None = Field(
        default=None,
        description="Maximum seconds to wait for the runs in `after`. null: no limit.",
    )


RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]


class BaseJob(Section):
    """Keys that all jobs share."""

    name: RunName = Field(description="Name of the run and of its directory in `runs/`.")
    storage: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="Folder for checkpoints that all hosts share, or a URL such as "
        "`gs://bucket/path`. null: the run directory.",
    )
    after: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(),
        strict=False,
        description="Runs, by name or folder, that must finish before this one starts. It is "
        "cancelled when one of them ends without finishing.",
    )
    retries: Retries = Field(default=Retries(), description="Limits on automatic restarts.")
    deadlines: Deadlines = Field(
        default=Deadlines(), description="Deadlines after which a host counts as hung."
    )
    secrets: tuple[VariableName, ...] = Field(
        default=(),
        strict=False,
        description="Environment variables that are copied from your shell to every host. Only "
        "their names are written to disk.",
    )
    priority: int = Field(
        default=0,
        description="Runs of a queue start by priority, the highest first, and then by time of "
        "entry.",
    )
    preemptible: bool = Field(
        default=False,
        description="Whether the run saves and stops for a run of the queue with a higher "
        "priority, and resumes later.",
    )
    budget: Budget | None = Field(
        default=None,
        description="Limits of time and cost, after which the run saves and stops. null: none.",
    )
    notify: tuple[AnyTarget, ...] | None = Field(
        default=None,
        strict=False,
        description="Targets of notifications. null: those of your configuration file. []: none.",
    )
    sweep: Sweep | None = Field(
        default=None,
        exclude=True,  # a run is one point
        description="Points of `launch sweep`. null: those of its command line.",
    )


class Job(BaseJob):
    """A training job."""

    steps: Positive = Field(description="Number of optimizer updates of the whole run.")
    stop_after_step: Positive | None = Field(
        default=None,
        description="Step after which the run ends early, evaluated and saved. The learning-rate "
        "schedule stays that of all `steps`. null: none.",
    )
    seed: Seed = Field(
        default=0, description="Seed of the initial weights, the order of examples and dropout."
    )
    log_every: Positive = Field(
        default=1, description="Number of steps between lines in metrics.jsonl."
    )
    tensorboard: bool = Field(
        default=False,
        description="Whether metrics are written as TensorBoard event files to the run directory. "
        "Requires the extra `tensorboard`.",
    )
    wandb: Wandb | None = Field(
        default=None,
        description="Logging of metrics to Weights & Biases. Requires the extra `wandb`. null: "
        "off.",
    )
    model: AnyModel = Field(description="The built-in decoder, or a custom model (`module`).")
    lora: Lora | None = Field(
        default=None,
        description="Low-rank adapters to train instead of the model's own weights. null: off.",
    )
    dpo: Dpo | None = Field(
        default=None,
        description="Direct preference optimization on the pairs of `data.source: preference`. "
        "null: next-token prediction.",
    )
    distill: Distill | None = Field(
        default=None,
        description="Distillation from a teacher: the model learns its predictions of each token. "
        "null: off.",
    )
    data: Data = Field(description="Corpora, tokenizer and batch size.")
    mesh: Mesh = Field(default=Mesh(), description="Sizes of the mesh axes.")
    optimizer: Optimizer = Field(
        default=Optimizer(), description="Update rule and learning-rate schedule."
    )
    eval: Eval | None = Field(
        default=Eval(), description="Evaluation on held-out documents. null: off."
    )
    sample: Sample | None = Field(
        default=Sample(),
        description="Text that the model generates. null: off, as by default for custom models.",
    )
    checkpoint: Checkpoint | None = Field(
        default=Checkpoint.model_validate({}),
        description="Schedule and retention of checkpoints. null: off.",
    )
    on_spike: Literal["continue", "skip", "rewind", "stop"] = Field(
        default="continue",
        description="What follows a loss or gradient norm far above those of the steps before. "
        "`continue` logs it; a value that is not finite stops the run. `skip` drops the update. "
        "`rewind` goes back to the newest checkpoint and excludes the examples of the step. `stop` "
        "ends the run.",
    )
    integrity: Integrity | None = Field(
        default=None,
        description="Checks that find hosts which compute wrong numbers. null: off.",
    )
    profile: Profile | None = Field(
        default=None, description="Trace of some steps for TensorBoard or Perfetto. null: off."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Defaults `sample` to null for a custom model, which generates no text."""
        model = given.get("model") if isinstance(given, dict) else None
        if isinstance(model, dict) and "module" in model:
            return {"sample": None, **given}
        return given

    @model_validator(mode="after")
    def _saves_when_preempted(self) -> "Job":
        if self.preemptible and self.checkpoint is None:
            raise KeyedError(("preemptible", "true requires checkpoints, found checkpoint: null"))
        return self

    @model_validator(mode="after")
    def _saves_to_rewind(self) -> "Job":
        if self.on_spike == "rewind" and self.checkpoint is None:
            raise KeyedError(("on_spike", "rewind requires checkpoints, found checkpoint: null"))
        return self

    @model_validator(mode="after")
    def _saves_what_is_checked(self) -> "Job":
        if self.integrity and self.checkpoint is None:
            message = "requires checkpoints to go back to, found checkpoint: null"
            raise KeyedError(("integrity", message))
        return self

    @model_validator(mode="after")
    def _stops_before_the_end(self) -> "Job":
        if self.stop_after_step is not None and self.stop_after_step > self.steps:
            message = f"the run has only {self.steps} steps, found {self.stop_after_step}"
            raise KeyedError(("stop_after_step", message))
        return self

    @property
    def last_step(self) -> int:
        """The step with which the run ends."""
        return self.stop_after_step or self.steps

    @property
    def is_random(self) -> bool:
        """Whether steps draw random numbers: for dropout, or in a custom model."""
        return not isinstance(self.model, Model) or self.model.dropout > 0

    @property
    def decoder(self) -> Model:
        """The built-in decoder of a job without a custom model."""
        assert isinstance(self.model, Model)
        return self.model
