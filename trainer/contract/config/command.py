"""The schema of a job that runs any program: `command` replaces `model`, `data`, ..."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, field_validator

from trainer.contract.config.job import BaseJob, Job, VariableName
from trainer.contract.config.loader import Loaded, load_chosen
from trainer.contract.protocol.environment import SET_BY_SLIPWAY

AnyTexts = TypeVar("AnyTexts", list[str], dict[str, str])

_BARE = re.compile(r"[A-Za-z./_][A-Za-z0-9./_=-]*")


class CommandJob(BaseJob):
    """A job that starts one program once on every host."""

    not_here: ClassVar[Mapping[str, str]] = dict.fromkeys(
        Job.model_fields.keys() - BaseJob.model_fields.keys(),
        "belongs to training jobs, and this job has a command. Remove one of the two",
    )
    command: list[str] = Field(
        description="Program and its arguments, started once on every host without a shell."
    )
    env: dict[VariableName, str] = Field(
        default={},
        description="Environment variables to add. PATH and PYTHONPATH are put before the "
        "host's values.",
    )
    grace_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="Seconds that the program has to exit after SIGTERM."
    )

    @field_validator("command", mode="before")
    @classmethod
    def _is_a_list(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError(f"expected a list: {_as_list(given)}")
        if isinstance(given, list) and given[:1] in ([], [""]):
            raise ValueError("the program is missing; expected a list: [python, my_script.py]")
        return given

    @field_validator("command", "env")
    @classmethod
    def _can_be_passed(cls, given: AnyTexts) -> AnyTexts:
        texts = given if isinstance(given, list) else [*given.values()]
        if any("\0" in text for text in texts):
            raise ValueError("found a text with the character \\0, which no program can receive")
        return given

    @field_validator("env")
    @classmethod
    def _leaves_the_contract_alone(cls, env: dict[str, str]) -> dict[str, str]:
        taken = [name for name in env if SET_BY_SLIPWAY.fullmatch(name)]
        if taken:
            raise ValueError(f"{', '.join(taken)}: Slipway sets this itself. Remove it")
        return env


def load_job(path: Path, overrides: Sequence[str] = ()) -> Loaded[Job | CommandJob]:
    """Reads a job file; a file with `command` is a CommandJob. Raises ConfigError."""
    return load_chosen(path, _schema_for, overrides)


def _schema_for(content: Mapping[Any, Any]) -> type[Job] | type[CommandJob]:
    return CommandJob if "command" in content else Job


def _as_list(text: str) -> str:
    """Returns the arguments of a command line as a YAML list."""
    try:
        args = shlex.split(text)
    except ValueError:
        args = text.split()
    return f"[{', '.join(w if _BARE.fullmatch(w) else _quoted(w) for w in args)}]"


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"
