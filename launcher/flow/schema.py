"""The schema of a flow file: a list of jobs and commands, each a run of its own."""

from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from trainer.contract.config.base import Section
from trainer.contract.config.job import RunName

Text = Annotated[str, Field(min_length=1)]


class Step(Section):
    """One step: a job file, or a command of `launch` about runs that have finished."""

    name: RunName | None = Field(
        default=None,
        description="Name of the step and of its run. null: the name in the job file. Required "
        "by `launch`.",
    )
    job: Text | None = Field(
        default=None, description="Path of a job file, relative to the folder of the flow file."
    )
    launch: tuple[Text, ...] | None = Field(
        default=None,
        min_length=1,
        strict=False,
        description="Arguments of `launch`, such as `[checkpoints, export, RUN, --to, DIR]`. The "
        "command runs on this machine.",
    )
    after: tuple[Text, ...] = Field(
        default=(),
        strict=False,
        description="Steps and other runs that must finish before, in addition to those in the "
        "job, to the run of its `init_from` and to steps that `launch` names.",
    )
    cluster: Text | None = Field(
        default=None, description="Cluster of the job. null: the one of the command line."
    )
    overrides: dict[str, Any] = Field(
        default={},
        description="Changes to the job, by dotted key: `{steps: 20, mesh.tensor: 2}`.",
    )

    @model_validator(mode="after")
    def _is_a_job_or_a_command(self) -> "Step":
        if (self.job is None) == (self.launch is None):
            raise ValueError("expected one of the keys `job` and `launch`")
        if self.launch is None:
            return self
        needless = {"cluster": self.cluster, "overrides": self.overrides}
        problems = [f"`{key}` is only for jobs" for key, value in needless.items() if value]
        if self.name is None:
            problems.append("a command needs a `name`")
        if problems:
            raise ValueError("; ".join(problems))
        return self


class Flow(Section):
    """A list of jobs and commands that one command runs in the order of their dependencies."""

    name: RunName = Field(description="Name of the flow. One command at a time runs it.")
    steps: tuple[Step, ...] = Field(
        strict=False, description="The steps. Their order does not matter."
    )

    @field_validator("steps")
    @classmethod
    def _is_not_empty(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        if not steps:
            raise ValueError("expected at least one step, found an empty list")
        return steps
