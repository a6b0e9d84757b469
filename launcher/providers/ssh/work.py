"""What `launch` tells hosts that are reached by SSH, beside what orders.py has for all providers.

Orders: {"run": Work} to the head, {"begun": true} to the others and, at the end, {"end": true}.
Answers of the head: {"running": true}; {"ended": exit code, "output": what `launch` printed}.
"""

from typing import Any

from pydantic import BaseModel, Field


class Work(BaseModel):
    """The run that the head sees to."""

    job: str | None
    """As YAML; None: a run that is there goes on."""
    overrides: list[str] = []
    """Of a run that goes on."""
    secrets: dict[str, str] = Field(default={}, repr=False)
    """Of the job, for `launch` there."""
    fresh: bool = False
    """Move an earlier run of the name aside."""
    cluster: dict[str, Any]
    """As its file would have it; the head puts its own Ray in place of the provider."""
    cluster_name: str
    runs: str
    name: str
