"""The section `checkpoint` of a job file."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from trainer.contract.config.base import NonNegative, Positive, Section
from trainer.contract.config.checkpoint_ref import parse_checkpoint_ref
from trainer.contract.config.errors import KeyedError


class Checkpoint(Section):
    """Schedule and retention of saves, and the weights that a run starts from."""

    not_here: ClassVar = {"every": "unknown key. Set every_steps, or every_minutes: auto or N"}

    every_steps: Positive | None = Field(
        default=None,
        description="Save every N steps. May be combined with a number of `every_minutes`.",
    )
    every_minutes: Annotated[float, Field(gt=0)] | Literal["auto"] | None = Field(
        default=None,
        description="Save every N minutes. auto: as often as costs least, by the measured cost of "
        "a save and the rate of faults. Defaults to 10 when `every_steps` is not set; both may be "
        "set.",
    )
    in_memory_every_steps: Positive | Literal["auto"] | None = Field(
        default=None,
        description="Also keep the state of every N-th step in the memory of the hosts, with a "
        "copy on another host. auto: as often as takes 1 % of the time of steps. null: do not.",
    )
    keep: Positive = Field(default=3, description="Number of newest checkpoints that are kept.")
    keep_every_steps: Positive | None = Field(
        default=None,
        description="Checkpoints whose step is a multiple of this are never deleted. null: none.",
    )
    keep_best: NonNegative = Field(
        default=0,
        description="Number of checkpoints with the lowest validation loss that are kept in "
        "addition.",
    )
    on_save_error: Literal["continue", "stop"] = Field(
        default="continue",
        description="Whether a failed save ends the run, or is logged and retried at the next one.",
    )
    on_data_change: Literal["stop", "continue"] = Field(
        default="stop",
        description="Whether a resumed run may continue with another corpus or batch size.",
    )
    grace_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0,
        description="Seconds that a stopped run has to save its state before it is killed.",
    )
    init_from: str | None = Field(
        default=None,
        description="Weights to start from: a checkpoint of a run (`run:NAME@STEP`, "
        "`run:NAME@best`, or `run:NAME` for the newest one), or the folder of a run, a checkpoint "
        "or a Hugging Face model.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Defaults to a save every 10 minutes when the job sets no interval."""
        if isinstance(given, dict) and not given.keys() & {"every_steps", "every_minutes"}:
            return {**given, "every_minutes": 10.0}
        return given

    @model_validator(mode="after")
    def _has_one_interval(self) -> "Checkpoint":
        if self.every_minutes == "auto" and self.every_steps is not None:
            message = f"auto requires every_steps: null, found {self.every_steps}"
            raise KeyedError(("every_minutes", message))
        return self

    @field_validator("init_from")
    @classmethod
    def _is_a_reference_or_a_folder(cls, init_from: str | None) -> str | None:
        parse_checkpoint_ref(init_from or "")
        return init_from
