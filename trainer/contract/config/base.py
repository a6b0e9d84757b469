"""Base class of the sections of every file, and the types that most sections use."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""`jax.random.key` takes integers of 64 bits with a sign."""
Fraction = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A block of a file. Unknown keys are errors, types are not coerced, values are frozen."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True
    )
    not_here: ClassVar[Mapping[str, str]] = {}
    """Keys that do not belong in this section, each with its error message."""
